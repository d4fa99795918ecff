"""Imports of a process that will be copied, and whether it still can be."""

import gc
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from foretune.core.importing import collector_paused

_DRIVERS = {"/dev/nvidia-uvm": "CUDA", "/dev/kfd": "ROCm"}
"""Open as soon as a process has initialised the driver. NVML, which only counts devices, opens others."""
_WITHOUT_DEVICES = {
    # Libraries ask torch for a GPU while they are imported. With this, torch answers without initialising CUDA.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # And this is the answer: torchao would ask for the capability of a GPU, for which torch initialises CUDA. Drivers
    # read these variables when they are initialised, which is in the tasks.
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
}
"""Variables of a process that imports libraries and sees no GPU."""


def preload(names: Sequence[str]) -> list[str]:
    """Imports what tasks import; returns what went wrong. The tasks meet it again and report it as theirs."""
    problems = []
    with collector_paused(), no_device_seen():
        for name in names:
            try:
                import_module(name)
            except Exception as error:  # noqa: BLE001 - see above
                problems.append(f"{name} could not be imported: {type(error).__name__}: {error}")
    gc.collect()
    # What is there now stays in the memory that all copies share.
    gc.freeze()
    return problems


def why_not_copied(descriptors: Path = Path("/proc/self/fd")) -> str | None:
    """Why copies of this process would not work; None where they do."""
    if not hasattr(os, "fork") or sys.platform != "linux":
        return "processes cannot be copied safely on this system"
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if threads:
        return f"imports started threads ({', '.join(threads)}), which a copy would not have"
    opened = set(_targets(descriptors))
    drivers = [name for path, name in _DRIVERS.items() if path in opened]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        drivers.append("CUDA")
    if drivers:
        return f"imports initialised {drivers[0]}, which a copy could not use"
    return None


def _targets(descriptors: Path) -> Iterator[str]:
    for path in descriptors.iterdir():
        # The one through which the folder itself is read is gone by now.
        with suppress(OSError):
            yield str(path.readlink())


@contextmanager
def no_device_seen() -> Iterator[None]:
    """For imports in a process that will be copied: libraries that look for a GPU find none."""
    before = {name: os.environ.get(name) for name in _WITHOUT_DEVICES}
    os.environ.update(_WITHOUT_DEVICES)
    try:
        yield
    finally:
        # Tasks decide this themselves.
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
