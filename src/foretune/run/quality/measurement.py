"""What a metric answers, before statistics make scores of it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from foretune.run.quality.evidence import Evidence
    from foretune.run.quality.setting import Setting

Need = Literal["samples", "denoised", "losses"]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One metric of one column: raw numbers in clusters, or the reason why there are none."""

    metric: str
    unit: str = ""
    higher_is_better: bool | None
    groups: tuple[tuple[float, ...], ...] = ()
    """Numbers by cluster, such as by prompt; equal places in both columns belong together."""
    repeats_over: str = "prompts"
    """What a cluster is."""
    is_share: bool = False
    """Whether every number lies in [0, 1] and may well be 0 or 1."""
    value: float | None = None
    """Of the whole, where it is no mean of the groups."""
    smallest_difference: float = 0.0
    """What is said to matter, in the metric's unit."""
    smallest_is_relative: bool = False
    """Whether it is a share of the base's value instead."""
    bands: dict[str, float] | None = None
    why_absent: str | None = None

    def absent(self, why: str) -> "Measurement":
        """The same metric without numbers."""
        return replace(self, groups=(), value=None, bands=None, why_absent=why)

    def with_groups(self, groups: tuple[tuple[float, ...], ...]) -> "Measurement":
        """The same metric with its numbers."""
        return replace(self, groups=groups)


class Metric(Protocol):
    """One metric, or several that are read off the same thing."""

    needs: ClassVar[frozenset[Need]]
    """What must be made of each model before it can be measured."""

    def why_absent(self, setting: "Setting") -> str | None:
        """The reason why it cannot be taken here, with what to type, as far as is known before any work."""

    def measure(self, setting: "Setting", column: "Evidence", base: "Evidence | None") -> tuple[Measurement, ...]:
        """The column's numbers. `base` is the other column, None for the base itself."""
