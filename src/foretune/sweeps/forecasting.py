"""The memory forecast of trials: of one combination once, and compared with what a trial may take."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from foretune.catalog.devices import Device
from foretune.config.reading import Asked
from foretune.config.sweep_files import SweepAsked, SweepTrial
from foretune.core.units import GIB, MIB
from foretune.core.values import Plan
from foretune.planner.asking import LiveSource
from foretune.sweeps.strategies.seam import MemoryExcess
from foretune.training.forecast import device_here, plan_on_device

_BEYOND_TENSORS_BYTES = 24 * MIB
"""What a process grows by while it trains on a CPU, beside its tensors: a thread's stack, kernels that are kept, small
objects. Measured as 23 and 25 MiB at two batch sizes of a tiny FLUX."""
_MOST_STORED = 500
_LEAST_SHARE = 0.95
"""Of the tensors' forecast: what a combination is sure to need."""


@dataclass(frozen=True)
class Baseline:
    """What the process of a trial takes before it does anything."""

    resident_bytes: int
    private_bytes: int | None
    """What counts against a limit of host memory; None where the system does not say."""


class Forecasts:
    """Plans of trials, made once for all seeds of a combination."""

    def __init__(
        self,
        sweep: SweepAsked,
        live: LiveSource,
        device: Device | None,
        baseline: Callable[[], Baseline],
        *,
        is_here: bool,
    ) -> None:
        """`device` is that of a cluster; where trials run here, it is this machine's. `baseline` measures it once."""
        self._sweep, self._live, self._device, self._is_here = sweep, live, device, is_here
        self._measured_baseline = cache(baseline)
        self._plans: dict[str, Plan | None] = {}

    def plan(self, trial: SweepTrial) -> Plan | None:
        """None where there can be no forecast: for an unknown device, or a step that cannot be recorded."""
        if trial.asked is None:
            return None
        if trial.point not in self._plans:
            if len(self._plans) >= _MOST_STORED:
                del self._plans[next(iter(self._plans))]
            self._plans[trial.point] = self._plan(trial.asked)
        plan = self._plans[trial.point]
        # The seed is part of the experiment, and so of the hash that a plan names.
        whole = trial.asked.experiment.whole_hash()
        return None if plan is None else plan.model_copy(update={"experiment": whole})

    def estimate(self, trial: SweepTrial) -> MemoryExcess | None:
        """How far the forecast is above what a trial may take."""
        plan = self.plan(trial)
        if plan is None:
            return None
        host_gib = self._sweep.file.limits.host_gib
        peak = plan.at_peak
        if host_gib is None or plan.host is not None:
            return MemoryExcess(peak.process_low_bytes - plan.usable_bytes, peak.process_bytes - plan.usable_bytes)
        private_bytes = self._measured_baseline().private_bytes
        if private_bytes is None:
            return None
        # The limit counts private memory, most of which a process has before it trains: what it grows by is forecast.
        left_bytes = host_gib * GIB - private_bytes
        return MemoryExcess(
            _LEAST_SHARE * peak.allocated_bytes - left_bytes, peak.allocated_bytes + _BEYOND_TENSORS_BYTES - left_bytes
        )

    def _plan(self, asked: Asked) -> Plan | None:
        device = self._device
        if device is None and self._is_here:
            device = device_here(asked.experiment.parallel.device)
        if device is None:
            return None
        return plan_on_device(asked, self._live, device, context_bytes=self._measured_baseline().resident_bytes)
