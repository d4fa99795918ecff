"""What a metric answers, before statistics make scores of it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from foretune.core.scores import SCORES, ScoreKind

if TYPE_CHECKING:
    from foretune.quality.evidence import SampledEvidence
    from foretune.quality.setting import Setting

Need = Literal["samples", "denoised", "losses"]
Groups = tuple[tuple[float, ...], ...]
"""Numbers by cluster, such as by prompt; equal places in both columns belong together."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What was read off one column, raw."""

    groups: Groups = ()
    value: float | None = None
    """Of the whole, where it is no mean of the groups."""
    bands: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreReading:
    """One score of one column: raw numbers in clusters, or the reason why there are none."""

    kind: ScoreKind
    repeats_over: str
    """What a cluster is."""
    numbers: Numbers = Numbers()
    why_absent: str | None = None

    @classmethod
    def of(cls, score: str, repeats_over: str, numbers: Numbers) -> "ScoreReading":
        """Of a score by its name."""
        return cls(kind=SCORES[score], repeats_over=repeats_over, numbers=numbers)

    @property
    def metric(self) -> str:
        return self.kind.name

    @property
    def groups(self) -> Groups:
        return self.numbers.groups

    def absent(self, why: str) -> "ScoreReading":
        """The same metric without numbers."""
        return replace(self, numbers=Numbers(), why_absent=why)


class Metric(Protocol):
    """One metric, or several that are read off the same thing."""

    needs: ClassVar[frozenset[Need]]
    """What must be made of each model before it can be measured."""

    def why_absent(self, setting: "Setting") -> str | None:
        """The reason why it cannot be taken here, with what to type, as far as is known before any work."""

    def measure(
        self, setting: "Setting", column: "SampledEvidence", base: "SampledEvidence | None"
    ) -> tuple[ScoreReading, ...]:
        """The column's numbers. `base` is the other column, None for the base itself."""


class OneScore(ABC):
    """A metric of one score, which each column has by itself."""

    needs: ClassVar[frozenset[Need]] = frozenset({"samples"})
    score: ClassVar[str]
    """Its name in an evaluation."""
    repeats_over: ClassVar[str | None] = None
    """What a cluster is; None where it is what samples repeat over."""

    @abstractmethod
    def why_absent(self, setting: "Setting") -> str | None:
        """The reason why it cannot be taken here."""

    @abstractmethod
    def numbers(self, setting: "Setting", column: "SampledEvidence") -> Numbers:
        """What is read off a column."""

    def measure(
        self, setting: "Setting", column: "SampledEvidence", base: "SampledEvidence | None"
    ) -> tuple[ScoreReading, ...]:
        found = self.numbers(setting, column)
        return (ScoreReading.of(self.score, self.repeats_over or setting.repeats_over, found),)
