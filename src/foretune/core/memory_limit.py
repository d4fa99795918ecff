"""Host memory that a process may take: so that what does not fit fails here, not elsewhere on the machine."""

import os
from pathlib import Path

from foretune.core.units import KIB


def limit_memory(limit_bytes: int | None) -> None:
    """Beyond the limit, allocations fail with "out of memory". Only where the system can limit them.

    The limit counts private memory that the process may write to. That includes what a GPU's driver maps for itself,
    which can be gigabytes, and not page-locked memory.
    """
    if limit_bytes is None or os.name == "nt":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def lift_memory_limit() -> None:
    """Undoes `limit_memory`, so that a process without memory can still report it."""
    if os.name == "nt":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def free_host_bytes() -> int | None:
    """What the system could still give out; None where it does not say."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return None
    fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * KIB
