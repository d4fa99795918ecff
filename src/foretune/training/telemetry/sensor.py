"""What a sensor is, and the names of what sensors tell."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Quantities = dict[str, Any]
"""What one source reported at one moment. The names carry their units:

power_w, energy_j (a counter that only grows), clock_hz, memory_clock_hz, temperature_c, throttling (reasons, empty
where there is none), utilisation (0 to 1), memory_used_bytes, memory_available_bytes, process_memory_bytes,
swap_used_bytes, swapped_bytes (a counter), process_cpus and other_cpus (processors kept busy by the run and by
everything else), quota_throttled_s (a counter: seconds for which the container's share of processors was used up).
"""

GPU_SOURCES = ("nvidia:", "amd:")
"""How the names of sources begin that are GPUs."""

Questions = dict[str, Callable[[], Any]]


class Sensor(Protocol):
    """One library or file that is asked for numbers."""

    def read(self) -> Mapping[str, Quantities]:
        """By source ("host", "nvidia:0", "rapl:package-0"): what it tells now, and nothing that it does not tell."""

    def close(self) -> None:
        """Lets go of the library."""


def answered(**asked: Callable[[], Any]) -> Quantities:
    """Asks each question and returns the answers. One that fails, or is answered by None, is left out.

    Libraries raise errors of their own for what a device does not support, each its own class.
    """
    found = {}
    for name, ask in asked.items():
        try:
            answer = ask()
        except Exception:  # noqa: BLE001, S112 - absent is absent, for whichever reason
            continue
        if answer is not None:
            found[name] = answer
    return found
