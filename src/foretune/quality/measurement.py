"""The raw results of metrics, before statistics turn them into scores."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from foretune.core.scores import SCORES, ScoreKind

if TYPE_CHECKING:
    from foretune.quality.evidence import SampledEvidence
    from foretune.quality.setting import Setting

Need = Literal["samples", "denoised", "losses"]
Groups = tuple[tuple[float, ...], ...]
"""Values by cluster, such as by prompt; equal positions in both columns belong together."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Raw values of one column."""

    groups: Groups = ()
    value: float | None = None
    """The overall value, if it is not the mean of the groups."""
    bands: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreReading:
    """One score of one column: raw values in clusters, or the reason why there are none."""

    kind: ScoreKind
    repeats_over: str
    """The meaning of a cluster."""
    numbers: Numbers = Numbers()
    why_absent: str | None = None

    @classmethod
    def of(cls, score: str, repeats_over: str, numbers: Numbers) -> "ScoreReading":
        """Creates a reading for a score by name."""
        return cls(kind=SCORES[score], repeats_over=repeats_over, numbers=numbers)

    @property
    def metric(self) -> str:
        return self.kind.name

    @property
    def groups(self) -> Groups:
        return self.numbers.groups

    def absent(self, why: str) -> "ScoreReading":
        """Returns the same metric without values."""
        return replace(self, numbers=Numbers(), why_absent=why)


class Metric(Protocol):
    """One metric, or several that use the same evidence."""

    needs: ClassVar[frozenset[Need]]
    """The evidence that each model must provide before it can be measured."""

    def why_absent(self, setting: "Setting") -> str | None:
        """Returns why the metric is not available here, and what to run, as far as is known before any work."""

    def measure(
        self, setting: "Setting", column: "SampledEvidence", base: "SampledEvidence | None"
    ) -> tuple[ScoreReading, ...]:
        """Returns the column's values. `base` is the other column, None for the base itself."""


class OneScore(ABC):
    """A metric with one score, measured for each column separately."""

    needs: ClassVar[frozenset[Need]] = frozenset({"samples"})
    score: ClassVar[str]
    """Its name in an evaluation."""

    @abstractmethod
    def why_absent(self, setting: "Setting") -> str | None:
        """Returns why the metric is not available here."""

    def repeats_over(self, setting: "Setting") -> str:
        """Returns the meaning of a cluster of values."""
        return setting.repeats_over

    @abstractmethod
    def numbers(self, setting: "Setting", column: "SampledEvidence") -> Numbers:
        """Returns the values of a column."""

    def measure(
        self, setting: "Setting", column: "SampledEvidence", base: "SampledEvidence | None"
    ) -> tuple[ScoreReading, ...]:
        found = self.numbers(setting, column)
        return (ScoreReading.of(self.score, self.repeats_over(setting), found),)
