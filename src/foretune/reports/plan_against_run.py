"""What was planned for a run beside what was measured in it."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from foretune.analyse.run_data import RunData

PlannedKind = Literal["speed", "memory"]


class PlannedAndMeasured(NamedTuple):
    """One figure of a run."""

    planned: float
    measured: float
    what: str

    @property
    def error(self) -> float:
        """Of the plan, as a share of what was measured."""
        return self.planned / self.measured - 1


def speed_pair(run: RunData) -> PlannedAndMeasured | None:
    """Samples a second; None where either is not known, or the plan is for other settings than the run ended with."""
    if run.record is None or run.record.plan is None or run.record.plan.experiment != run.record.experiment_hash:
        return None
    time, measured = run.record.plan.time, run.record.measured.samples_per_s
    return None if time is None or measured is None else PlannedAndMeasured(time.samples_per_s, measured, "speed")


def memory_pair(run: RunData) -> PlannedAndMeasured | None:
    """Peak bytes of tensors on a device, or of the whole process on the host."""
    if run.record is None or run.record.plan is None:
        return None
    peak, measured = run.record.plan.at_peak, run.record.measured
    if measured.peak_device_bytes is not None:
        return PlannedAndMeasured(peak.allocated_bytes, measured.peak_device_bytes, "memory of device tensors")
    if measured.peak_host_bytes is None:
        return None
    return PlannedAndMeasured(peak.process_bytes, measured.peak_host_bytes, "memory of the process")


PAIRS: Mapping[PlannedKind, Callable[[RunData], PlannedAndMeasured | None]] = {
    "speed": speed_pair,
    "memory": memory_pair,
}
UNITS: Mapping[PlannedKind, str] = {"speed": "samples/s", "memory": "bytes"}
