"""How long a kernel takes on a device."""

import time
from collections.abc import Callable

import torch

from foretune.accelerator.timing import DeviceClock, clock_of, wait_for
from foretune.measure.calibration.rounds import Run

_CALLS = 5
_STALL_S = 1e-3
_STALL_SIZE = 2048


class HostStopwatch:
    """A CPU computes within the call.

    One thread is measured by its own processor time: it does not count what other programs take, even where a kernel
    lasts longer than the system leaves a core to one program. Several threads wait for each other, which belongs to
    their time and takes none of the processor, so their wall time counts.
    """

    def __init__(self, num_threads: int, now: Callable[[], float] | None = None) -> None:
        self._now = now or (time.thread_time if num_threads == 1 else time.perf_counter)

    def __call__(self, run: Run) -> float:
        begin_s = self._now()
        run()
        return self._now() - begin_s


class QueueStopwatch:
    """A device that works through a queue notes the time before and after several calls.

    A large product comes first: while the device computes it, the host fills the queue. So the device never waits for
    the host, and the time is that of the kernels alone.
    """

    def __init__(self, device: torch.device, clock: DeviceClock) -> None:
        self._device, self._clock = device, clock
        self._left = torch.zeros(_STALL_SIZE, _STALL_SIZE, device=device)
        self._num_products = 1
        self._stall()
        wait_for(device)
        begin_s = time.perf_counter()
        self._stall()
        wait_for(device)
        self._num_products = max(1, round(_STALL_S / (time.perf_counter() - begin_s)))

    def _stall(self) -> None:
        for _ in range(self._num_products):
            torch.mm(self._left, self._left)

    def __call__(self, run: Run) -> float:
        self._stall()
        begin = self._clock.mark()
        for _ in range(_CALLS):
            run()
        end = self._clock.mark()
        wait_for(self._device)
        return begin.elapsed_s(end) / _CALLS


def stopwatch_of(device: torch.device, num_threads: int) -> HostStopwatch | QueueStopwatch:
    clock = clock_of(device)
    return HostStopwatch(num_threads) if clock is None else QueueStopwatch(device, clock)
