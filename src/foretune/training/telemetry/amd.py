"""AMD devices through amdsmi, in a process of its own: the library cannot share one with a training that uses HIP.

`python -m foretune.training.telemetry.amd [PCI_ADDRESS...]` answers each line on its standard input by one line of JSON
about these devices, or all.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from foretune.core.thread_waiting import with_passive_waiting
from foretune.training.telemetry.sensor import Quantities, answered

_ANSWER_WITHIN_S = 10.0
# What the library writes where a device does not tell.
_NOT_TOLD = ("N/A", None, 0xFFFF, 0xFFFFFFFF)


class AmdSensor:
    """Asks a process that holds the library. A process that does not answer is ended, and asked no more."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=with_passive_waiting(os.environ),
        )

    @classmethod
    def open(cls, addresses: Sequence[str] | None = None) -> "AmdSensor | None":
        """Of all devices, or of those at these PCI addresses; None where there are none, or no package to ask."""
        if find_spec("amdsmi") is None or (addresses is not None and not addresses):
            return None
        sensor = cls([sys.executable, "-m", "foretune.training.telemetry.amd", *(addresses or ())])
        if sensor.read():
            return sensor
        sensor.close()
        return None

    def read(self) -> Mapping[str, Quantities]:
        process = self._process
        assert process.stdin is not None, "it was started with pipes"
        assert process.stdout is not None, "it was started with pipes"
        late = threading.Timer(_ANSWER_WITHIN_S, process.kill)
        late.start()
        try:
            process.stdin.write("read\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline() or "{}")
        except (OSError, ValueError):
            return {}
        finally:
            late.cancel()
        return dict(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # what came too late it need not know


def read_devices(library: Any, addresses: Sequence[str] = ()) -> dict[str, Quantities]:
    """The devices at these PCI addresses, or every device that amdsmi names."""
    handles = enumerate(library.amdsmi_get_processor_handles())
    return {
        f"amd:{index}": _of(library, handle)
        for index, handle in handles
        if not addresses or _address_of(library, handle) in addresses
    }


def _address_of(library: Any, handle: Any) -> str:
    """Domain, bus and device; the function after the dot tells partitions of one device apart."""
    return str(library.amdsmi_get_gpu_device_bdf(handle)).lower().partition(".")[0]


def _of(library: Any, handle: Any) -> Quantities:
    metrics = library.amdsmi_get_gpu_metrics_info(handle)
    return answered(
        power_w=lambda: _first(metrics, "current_socket_power", "average_socket_power"),
        energy_j=lambda: _energy_j(library.amdsmi_get_energy_count(handle)),
        clock_hz=lambda: _hz(_first(metrics, "current_gfxclk", "average_gfxclk_frequency")),
        memory_clock_hz=lambda: _hz(_first(metrics, "current_uclk", "average_uclk_frequency")),
        temperature_c=lambda: _first(metrics, "temperature_hotspot", "temperature_edge"),
        utilisation=lambda: _share(_first(metrics, "average_gfx_activity")),
        throttling=lambda: _throttled(_first(metrics, "throttle_status")),
        memory_used_bytes=lambda: library.amdsmi_get_gpu_vram_usage(handle)["vram_used"] * 2**20,
    )


def _first(metrics: Mapping[str, Any], *names: str) -> float | None:
    return next((float(metrics[name]) for name in names if metrics.get(name) not in _NOT_TOLD), None)


def _hz(mhz: float | None) -> float | None:
    return None if mhz is None else mhz * 1e6


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _throttled(status: float | None) -> list[str] | None:
    return None if status is None else ["throttled"] if status else []


def _energy_j(count: Mapping[str, Any]) -> float:
    """The counter in units of its own, whose size in microjoules comes with it; older releases call it power."""
    ticks = count.get("energy_accumulator", count.get("power"))
    assert ticks is not None, "no counter among the fields"
    return float(ticks) * float(count["counter_resolution"]) / 1e6


def _answer() -> None:
    import amdsmi

    amdsmi.amdsmi_init()
    for _ in sys.stdin:
        print(json.dumps(read_devices(amdsmi, sys.argv[1:])), flush=True)  # noqa: T201 - this is how the process answers


if __name__ == "__main__":
    _answer()
