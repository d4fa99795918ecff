"""In which environment a trial counts as measured: hardware where trials run here, and software everywhere."""

from typing import Any

from foretune.core.values.base import content_hash
from foretune.record.environment import environment_fingerprint

_SOFTWARE = ("foretune", "python", "implementation", "packages", "source")
_HARDWARE = (
    "system", "machine", "cpu", "num_usable_cpus", "memory_bytes", "nvidia_driver", "amd_driver", "libc",
)  # fmt: skip
_OF_THE_TRIAL = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that an executor sets for each trial."""


def environment_identity(*, is_here: bool) -> str:
    """A hash that is equal where a trial need not be measured again.

    `is_here`: trials run on this machine. A cluster's nodes are not known from here, so only the software counts.
    """
    found = environment_fingerprint()
    keys = (*_SOFTWARE, *(_HARDWARE if is_here else ()))
    facts: dict[str, Any] = {key: found.get(key) for key in keys}
    if is_here:
        variables = found.get("variables") or {}
        facts["variables"] = {key: value for key, value in variables.items() if key not in _OF_THE_TRIAL}
        devices = (found.get("torch") or {}).get("devices") or ()
        facts["devices"] = sorted({str(device.get("name")) for device in devices})
    return content_hash(facts)
