"""What process and device hold at this moment: cheap enough to be asked after every step."""

import os
import sys
import time
from contextlib import suppress

import torch

from foretune.accelerator.memory import allocated_bytes

_STATM = "/proc/self/statm"
# The allocator's counters come as a large table; the loop should not feel that it is read.
_DEVICE_EVERY_S = 0.25


class MemoryNow:
    """Resident bytes of this process, where the system tells in microseconds, and the bytes that the allocator has
    given out on the device. Neither question waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last_device_s = 0.0
        self._page_bytes = 0
        self._statm: int | None = None  # the series is absent on other systems than Linux
        if sys.platform == "linux":
            self._page_bytes = os.sysconf("SC_PAGE_SIZE")
            with suppress(OSError):
                self._statm = os.open(_STATM, os.O_RDONLY)

    def read(self) -> dict[str, int]:
        held: dict[str, int] = {}
        if self._statm is not None:
            held["host"] = int(os.pread(self._statm, 64, 0).split(maxsplit=2)[1]) * self._page_bytes
        now_s = time.monotonic()
        if now_s - self._last_device_s >= _DEVICE_EVERY_S:
            self._last_device_s = now_s
            device_bytes = allocated_bytes(self._device)
            if device_bytes is not None:
                held["device"] = device_bytes
        return held

    def __del__(self) -> None:
        if self._statm is not None:
            os.close(self._statm)
