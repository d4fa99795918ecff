"""Speeds that were measured on this machine come before published ones."""

from collections.abc import Mapping

from foretune import catalog
from foretune.catalog.devices import HERE, Device
from foretune.core.errors import UserError
from foretune.core.units import counted_text
from foretune.core.values.device_profile import DeviceProfile
from foretune.planner.timing.calibrated_speed import CalibratedSpeed
from foretune.planner.timing.device_speed import speed_of
from foretune.planner.timing.speed import DeviceSpeed, NotKnown
from foretune.planner.timing.terms import Speeds
from foretune.record.device_profiles import cpu_device_name, host_id, stored_profile, stored_profiles


def speeds_of_this_machine(num_threads: int | None = None) -> Speeds:
    """Returns the speeds of devices: by `foretune calibrate` where it ran on one, otherwise by what was published.

    `num_threads`: of the CPU. None: the number that torch or OMP_NUM_THREADS decides.
    """
    measured = _measured()

    def find(device: Device) -> DeviceSpeed:
        if device.row_name == HERE and device.kind == "cpu":
            return _cpu_speed(num_threads)
        known = _as_in_catalogue(device)
        own = measured.get(known.row_name, measured.get(device.kind) if known.row_name == HERE else None)
        if own is None and known.row_name == HERE and device.kind == "mps":
            raise NotKnown("how fast this machine's GPU is. Measure it: foretune calibrate")
        return speed_of(known) if own is None else own

    return find


def _cpu_speed(num_threads: int | None) -> DeviceSpeed:
    profile = stored_profile(cpu_device_name(), num_threads)
    if profile is not None:
        return CalibratedSpeed(profile, attention_format="fp32")
    if stored_profile(cpu_device_name()) is None or num_threads is None:
        raise NotKnown("how fast this CPU is. Measure it: foretune calibrate")
    threads = counted_text(num_threads, "threads")
    raise NotKnown(f"how fast this CPU is with {threads}. Measure it: foretune calibrate --threads {num_threads}")


def _as_in_catalogue(device: Device) -> Device:
    """A card of this machine under its own name, by which tables and profiles know it."""
    if device.row_name != HERE or device.kind == "mps":
        return device
    row = next((row for row in catalog.devices().values() if row.title == device.title), None)
    return device if row is None else device.model_copy(update={"name": row.name})


def _measured() -> Mapping[str, DeviceSpeed]:
    """Accelerators by the name of the catalogue's row, others by their kind."""
    found: dict[str, DeviceSpeed] = {}
    for profile in _of_accelerators():
        name = None if profile.kind == "mps" else _catalogue_name(profile)
        found[name or profile.kind] = CalibratedSpeed(profile)
    return found


def _of_accelerators() -> list[DeviceProfile]:
    """The newest of each."""
    profiles = [one.profile for one in stored_profiles() if one.profile is not None and one.profile.kind != "cpu"]
    own = sorted((one for one in profiles if one.host == host_id()), key=lambda profile: profile.measured_at)
    return list({profile.device: profile for profile in own}.values())


def _catalogue_name(profile: DeviceProfile) -> str | None:
    try:
        return catalog.device_names().resolve(profile.device).name
    except UserError:
        return None
