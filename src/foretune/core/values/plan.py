"""The forecast for one experiment on one kind of device."""

from typing import Literal

from pydantic import Field

from foretune.core.values.base import Part, Value

Verdict = Literal["fits", "tight", "does not fit"]


class PhaseMemory(Part):
    """Memory of one phase of a run (loading, caching, step, validation, saving)."""

    phase: str
    device_bytes_by_part: dict[str, int]
    host_bytes: int | None = None
    disk_bytes: int | None = None

    @property
    def device_bytes(self) -> int:
        return sum(self.device_bytes_by_part.values())


class Plan(Value):
    """Memory by part and phase with an error band, step time, cost, verdict, and what was assumed."""

    experiment: str
    """Hash of the whole experiment the plan is for."""
    device: str
    world_size: int
    phases: tuple[PhaseMemory, ...]
    error_band: float
    """Half-width of the memory forecast as a share of it: 0.05 is plus or minus 5 %."""
    verdict: Verdict
    worst_phase: str
    step_time_s: float | None = None
    """None while the planner cannot say; never a guess."""
    cost_usd: float | None = None
    knobs: dict[str, str] = Field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
