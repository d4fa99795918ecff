"""The host: memory, clocks, heat, and who keeps its processors busy (package psutil)."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretune.training.telemetry.sensor import Quantities, Questions, answered

_IDLE = ("idle", "iowait", "guest", "guest_nice")
_LONGEST_PAUSE_S = 30.0
_CPU_STAT = Path("/sys/fs/cgroup/cpu.stat")


class HostSensor:
    """One source, "host". Load is that between two readings, so the first has none."""

    def __init__(self, psutil: Any) -> None:
        self._psutil = psutil
        self._process = psutil.Process(os.getpid())
        self._hardware = [self._swap, self._clock, self._heat]
        self._workers: list[Any] = []
        self._next_look_s, self._pause_s = 0.0, 1.0
        self._before = self._used_s()

    @classmethod
    def open(cls) -> "HostSensor | None":
        try:
            import psutil
        except ImportError:
            return None
        return cls(psutil)

    def read(self) -> Mapping[str, Quantities]:
        memory = self._psutil.virtual_memory()
        found = answered(
            memory_used_bytes=lambda: memory.total - memory.available,
            memory_available_bytes=lambda: memory.available,
            process_memory_bytes=lambda: self._process.memory_info().rss,
            quota_throttled_s=quota_throttled_s,
        )
        for group in tuple(self._hardware):
            answers = answered(**group())
            if not answers:
                # Asking costs as much where there is nothing to tell, and hardware does not come while a run lasts.
                self._hardware.remove(group)
            found.update(answers)
        return {"host": {**found, **self._load()}}

    def _swap(self) -> Questions:
        swap = self._psutil.swap_memory()
        return (
            {"swap_used_bytes": lambda: swap.used, "swapped_bytes": lambda: swap.sin + swap.sout} if swap.total else {}
        )

    def _clock(self) -> Questions:
        return {"clock_hz": lambda: self._psutil.cpu_freq().current * 1e6 or None}

    def _heat(self) -> Questions:
        return {"temperature_c": lambda: hottest_c(self._psutil.sensors_temperatures())}

    def _load(self) -> Quantities:
        """Processors kept busy since the last reading, by this run with its workers and by all others."""
        before, now = self._before, self._used_s()
        passed_s = now[0] - before[0]
        if passed_s <= 0:
            return {}
        self._before = now
        busy, own = ((after - earlier) / passed_s for after, earlier in zip(now[1:], before[1:], strict=True))
        own = max(own, 0.0)
        num_cpus = self._psutil.cpu_count() or 1
        return {
            "utilisation": round(min(max(busy / num_cpus, 0.0), 1.0), 4),
            "process_cpus": round(own, 3),
            "other_cpus": round(max(busy - own, 0.0), 3),
        }

    def _used_s(self) -> tuple[float, float, float]:
        """The moment, and the processor seconds used so far: by everybody, and by this run."""
        times = self._psutil.cpu_times()._asdict()
        busy_s = sum(seconds for name, seconds in times.items() if name not in _IDLE)
        own_s = 0.0
        for process in (self._process, *self._own_workers()):
            try:
                own = process.cpu_times()
            except self._psutil.Error:
                continue  # a worker that has just ended
            own_s += own.user + own.system
        return time.monotonic(), busy_s, own_s

    def _own_workers(self) -> list[Any]:
        """Processes that this one started. Looking for them reads every process of the system, so it is done rarely."""
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._workers = self._process.children(recursive=True)
            self._next_look_s, self._pause_s = now_s + self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return self._workers

    def close(self) -> None:
        """Nothing is held."""


def hottest_c(sensors: Mapping[str, Any]) -> float | None:
    """The hottest of the processor's sensors; None where the system names none."""
    for chip in ("coretemp", "k10temp", "zenpower", "cpu_thermal"):
        if sensors.get(chip):
            return float(max(reading.current for reading in sensors[chip]))
    return None


def quota_throttled_s(cpu_stat: Path = _CPU_STAT) -> float | None:
    """Seconds for which the container was held back by its share of processors; None where it has none."""
    fields = dict(line.split() for line in cpu_stat.read_text(encoding="ascii").splitlines())
    return int(fields["throttled_usec"]) / 1e6 if int(fields.get("nr_periods", 0)) else None
