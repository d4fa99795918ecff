"""`calibrate`: how fast this machine's device is, for plans."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.core.errors import UserError
from foretune.core.extras import require
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from foretune.core.values.device_profile import DeviceProfile
    from foretune.record.device_profiles import StoredProfile


@dataclass(frozen=True)
class Calibrated:
    """A device's profile, and where it is stored."""

    profile: "DeviceProfile"
    path: Path


def calibrate(
    *, on: str = "auto", threads: int | None = None, budget_s: float = 45.0, observer: Observer | None = None
) -> Calibrated:
    """Measures how fast a device of this machine computes, and stores it for plans.

    Args:
        on: the device, as in `parallel.device`: `"auto"`, `"cuda"`, `"mps"` or `"cpu"`.
        threads: of the CPU; what torch or OMP_NUM_THREADS decides if left out.
        budget_s: seconds to measure for.
        observer: receives progress and warnings.
    """
    if budget_s <= 0:
        raise UserError(f"A budget of {budget_s:g} s leaves no time to measure. Run: foretune calibrate --budget 45s")
    if threads is not None and threads < 1:
        raise UserError(f"{threads} threads cannot compute. Run: foretune calibrate --threads 1")
    require("train", "Calibrating")
    observer = observer or Observer()
    import torch

    from foretune.api.process_state import torch_kept
    from foretune.measure.calibration.calibrating import Threads, calibrate_device
    from foretune.record.device_profiles import store_profile
    from foretune.training.devices import choose_device, use_threads

    observer.imported()
    device = choose_device(on)
    with torch_kept():
        use_threads(threads)
        used = Threads(torch.get_num_threads(), is_default=threads is None)
        profile = calibrate_device(device, used, budget_s, observer)
    for text in profile.warnings:
        observer.warning(text)
    return Calibrated(profile, store_profile(profile))


def calibrated() -> "tuple[StoredProfile, ...]":
    """All stored profiles, those that cannot be read included."""
    from foretune.record.device_profiles import stored_profiles

    return tuple(stored_profiles())


def forget_calibration() -> tuple[Path, ...]:
    """Removes all stored profiles; returns the files that were removed."""
    found = tuple(stored.path for stored in calibrated())
    for path in found:
        path.unlink(missing_ok=True)
    return found
