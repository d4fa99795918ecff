"""Whether other processes use this machine now: then speeds are lower and noisier than on an idle one."""

import os
import time

from foretune.core.observer import Observer
from foretune.training.telemetry.host import HostSensor

BUSY_SHARE = 0.25
"""Share of the cores that this process may use which others may take before it is reported."""
_SHORTEST_S = 0.3
"""Processor time is counted in hundredths of a second; over less than this a share of a core is a guess."""


class BusyWatch:
    """Counts the processor time of all other processes from when it is made.

    Make it before torch is imported and ask it afterwards: the imports take longer than the measurement has to.
    """

    def __init__(self) -> None:
        self._sensor = HostSensor.open()
        self._begin_s = time.monotonic()

    def warnings(self) -> list[str]:
        """One warning, or none."""
        if self._sensor is None:
            return []  # without psutil nothing is known
        time.sleep(max(0.0, self._begin_s + _SHORTEST_S - time.monotonic()))
        other = self._sensor.read()["host"].get("other_cpus")
        if other is None:
            return []
        return busy_warnings_of(float(other), os.cpu_count() or 1, num_usable_cores())

    def warn(self, observer: Observer) -> list[str]:
        """Shows the warning, if there is one, and returns it."""
        found = self.warnings()
        for text in found:
            observer.warning(text)
        return found


def busy_warnings_of(other_cores: float, num_cores: int, num_usable: int) -> list[str]:
    """The warning for so many cores in use by others.

    On a node whose scheduler gave this process some of the cores, other jobs have the rest: they count only where they
    need more than that.
    """
    taken = min(other_cores, num_cores) - (num_cores - num_usable)
    if taken <= BUSY_SHARE * num_usable:
        return []
    used = f"Other processes use {min(taken, num_usable):.1f} of {num_usable} cores"
    return [f"{used}; speeds measured now are lower and noisier than on an idle machine."]


def num_usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
