"""Speeds that were measured on this machine come before published ones."""

from collections.abc import Mapping

from foretune import catalog
from foretune.catalog.devices import HERE, Device
from foretune.core.errors import UserError
from foretune.core.values.device_profile import DeviceProfile
from foretune.planner.timing.calibrated_speed import CalibratedSpeed
from foretune.planner.timing.device_speed import speed_of
from foretune.planner.timing.speed import DeviceSpeed
from foretune.planner.timing.terms import Speeds
from foretune.record.device_profiles import cpu_device_name, host_id, stored_profile, stored_profiles


def speeds_of_this_machine() -> Speeds:
    """Returns the speeds of devices: by `foretune calibrate` where it ran on one, otherwise by what was published."""
    measured = _measured()

    def find(device: Device) -> DeviceSpeed:
        own = measured.get(device.name.partition(":")[0])  # without `:limit=20GiB`
        return speed_of(device) if own is None else own

    return find


def _measured() -> Mapping[str, DeviceSpeed]:
    """By the name of the catalogue's row; `here` is this machine's CPU."""
    found: dict[str, DeviceSpeed] = {}
    cpu = stored_profile(cpu_device_name())
    if cpu is not None:
        found[HERE] = CalibratedSpeed(cpu, attention_format="fp32")
    for profile in _of_accelerators():
        name = _catalogue_name(profile)
        if name is not None:
            found[name] = CalibratedSpeed(profile)
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
