"""Which process did something: its number alone is used again by the system."""

import os
import socket
from pathlib import Path
from typing import Any

_START_FIELD = 19
"""Of /proc/PID/stat, counted behind the command's name: when the process started, in clock ticks since boot."""


def boot_id() -> str | None:
    """Changes when the machine starts; None where the system has none."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="ascii").strip() if path.is_file() else None


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot. None where there is no such process, or no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[_START_FIELD])


def own_identity() -> dict[str, Any]:
    """Host, boot, number and start of this process."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "boot": boot_id(), "pid": pid, "process_start": process_start(pid)}


def is_alive(host: str, boot: str | None, pid: int, start: int | None) -> bool | None:
    """Whether that process lives; None where it cannot be known from here."""
    if host != socket.gethostname():
        return None
    if boot != boot_id():
        return False
    if start is not None:
        return process_start(pid) == start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
