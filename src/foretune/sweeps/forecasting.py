"""The memory forecast of trials: of one combination once, and compared with what a trial may take."""

from pathlib import Path

from foretune.catalog.devices import Device
from foretune.config.reading import Asked
from foretune.config.sweep_files import SweepAsked, Trial
from foretune.core.units import GIB, KIB
from foretune.core.values import Plan
from foretune.planner.asking import LiveSource
from foretune.sweeps.strategies.seam import Estimate
from foretune.training.forecast import device_here, plan_on_device
from foretune.training.devices import peak_host_bytes


class Forecasts:
    """Plans of trials, made once for all seeds of a combination."""

    def __init__(self, sweep: SweepAsked, live: LiveSource, device: Device | None, *, is_here: bool) -> None:
        """`device` is that of a cluster; where trials run here, it is this machine's."""
        self._sweep, self._live, self._device, self._is_here = sweep, live, device, is_here
        # Before anything is planned: a trial begins with the same libraries and nothing else.
        self._context_bytes, self._data_bytes = peak_host_bytes(), private_bytes()
        self._plans: dict[str, Plan | None] = {}

    def plan(self, trial: Trial) -> Plan | None:
        """None where there can be no forecast: for an unknown device, or a step that cannot be recorded."""
        if trial.asked is None:
            return None
        if trial.point not in self._plans:
            self._plans[trial.point] = self._plan(trial.asked)
        plan = self._plans[trial.point]
        # The seed is part of the experiment, and so of the hash that a plan names.
        whole = trial.asked.experiment.whole_hash()
        return None if plan is None else plan.model_copy(update={"experiment": whole})

    def estimate(self, trial: Trial) -> Estimate | None:
        """How far the forecast is above what a trial may take."""
        plan = self.plan(trial)
        if plan is None:
            return None
        host_gib = self._sweep.file.limits.host_gib
        peak = plan.at_peak
        if host_gib is None or plan.host is not None:
            return Estimate(peak.process_low_bytes - plan.usable_bytes, peak.process_bytes - plan.usable_bytes)
        if self._data_bytes is None:
            return None
        # The limit counts private memory, most of which a process has before it trains: what it grows by is forecast.
        left_bytes = host_gib * GIB - self._data_bytes
        growth_low = peak.process_low_bytes - self._context_bytes
        growth_likely = peak.process_bytes - self._context_bytes
        return Estimate(growth_low - left_bytes, growth_likely - left_bytes)

    def _plan(self, asked: Asked) -> Plan | None:
        device = self._device
        if device is None and self._is_here:
            device = device_here(asked.experiment.parallel.device)
        if device is None:
            return None
        return plan_on_device(asked, self._live, device, context_bytes=self._context_bytes)


def private_bytes() -> int | None:
    """What the operating system counts against a limit of host memory (VmData); None where it does not say."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    line = next((line for line in status.read_text().splitlines() if line.startswith("VmData:")), None)
    return None if line is None else int(line.split()[1]) * KIB
