"""Measures what a trial's process takes before it does anything: libraries, and the classes of its model.

An executor calls `perform`, once for a sweep: forecasts for a CPU begin with these figures.
"""

from pathlib import Path
from typing import Any

from foretune.config.reading import understand
from foretune.core.observer import Observer
from foretune.core.units import KIB
from foretune.trace.live import family_of
from foretune.training.devices import peak_host_bytes


def perform(request: dict[str, Any], observer: Observer) -> dict[str, Any]:  # noqa: ARG001
    """Resident and private memory of this process."""
    import foretune.sweeps.trial_worker  # noqa: F401

    family = family_of(understand(request["experiment"], source="The sweep's experiment", name=request["name"]).model)
    family.denoiser_class()
    family.pipeline_class()
    return {"resident_bytes": peak_host_bytes(), "private_bytes": private_bytes()}


def private_bytes() -> int | None:
    """What the operating system counts against a limit of host memory (VmData); None where it does not say."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    line = next((line for line in status.read_text().splitlines() if line.startswith("VmData:")), None)
    return None if line is None else int(line.split()[1]) * KIB
