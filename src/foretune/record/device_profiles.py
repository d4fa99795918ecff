"""Profiles of devices that `foretune calibrate` stored: one file for each device and number of threads."""

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from foretune.core.input_files import RefusedFile, read_text
from foretune.core.values.base import WrongFormat, content_hash
from foretune.core.values.device_profile import DeviceProfile
from foretune.record.atomic import write_text
from foretune.record.environment import cpu_name
from foretune.record.user_folder import user_folder

_MOST_BYTES = 16 * 2**20


@dataclass(frozen=True)
class StoredProfile:
    """A file in the folder of profiles."""

    path: Path
    profile: DeviceProfile | None
    problem: str | None = None
    """Why the file cannot be read."""


def profiles_folder() -> Path:
    return user_folder() / "devices"


def cpu_device_name() -> str:
    """The name under which the CPU's profile is stored."""
    return cpu_name() or platform.machine() or "cpu"


def host_id() -> str:
    """The same for machines with the same processors. A home directory may be shared by several machines."""
    return content_hash([platform.system(), platform.machine(), cpu_name(), os.cpu_count()])


def store_profile(profile: DeviceProfile, folder: Path | None = None) -> Path:
    """Writes the profile in place of the earlier one of this device and number of threads; returns the file."""
    path = (folder or profiles_folder()) / f"{_slug(profile.device)}.{profile.host}.{profile.num_threads}-threads.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(profile.to_mapping(), allow_nan=False) + "\n")
    return path


def stored_profile(
    device_name: str, num_threads: int | None = None, *, host: str | None = None, folder: Path | None = None
) -> DeviceProfile | None:
    """The newest usable profile of a device of this machine; None without one.

    Args:
        device_name: as the driver reports it; of a CPU, `cpu_device_name()`.
        num_threads: of a CPU. None: the number that torch or OMP_NUM_THREADS decides. Other devices ignore it.
        host: the machine, this one if left out.
        folder: where to look, the user's own if left out.
    """
    wanted = host or host_id()
    found = [
        stored.profile
        for stored in stored_profiles(folder)
        if stored.profile is not None
        and stored.profile.device == device_name
        and stored.profile.host == wanted
        and _has_threads(stored.profile, num_threads)
    ]
    return max(found, key=lambda profile: profile.measured_at, default=None)


def stored_profiles(folder: Path | None = None) -> Iterator[StoredProfile]:
    """Every file of the folder. One that is damaged or of a newer release has its problem in place of a profile."""
    for path in sorted((folder or profiles_folder()).glob("*.json")):
        try:
            yield StoredProfile(path, DeviceProfile.from_json(read_text(path, _MOST_BYTES)))
        except (WrongFormat, RefusedFile, OSError) as error:
            yield StoredProfile(path, None, str(error))


def _has_threads(profile: DeviceProfile, num_threads: int | None) -> bool:
    if profile.kind != "cpu":
        return True
    return profile.is_default_threads if num_threads is None else profile.num_threads == num_threads


def _slug(name: str) -> str:
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split()) or "device"
