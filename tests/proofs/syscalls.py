"""Ends a process at a chosen system call, by the means of a debugger. Linux only."""

import ctypes
import os
import signal
from collections.abc import Callable

PTRACE = "Linux, and leave for a process to trace its child (ptrace): docker run --cap-add SYS_PTRACE"
"""What is lacking where NotPermitted is raised."""
_TRACEME, _SYSCALL, _SETOPTIONS = 0, 24, 0x4200
# Stops at system calls are distinguished from signals; the traced process never outlives this one.
_OPTIONS = 0x1 | 0x100000
AT_SYSCALL = signal.SIGTRAP | 0x80


class NotPermitted(Exception):
    """This system does not let a process trace its child."""


def run_until_syscall(act: Callable[[], None], number: int | None) -> int:
    """Runs `act` in a copy of this process and kills it as it enters its system call of this number, from 0 on.

    Returns how many it has entered; with None it is left to end by itself. This process must have no other threads.
    """
    traced = Traced(act)
    num_entered, is_inside = 0, False
    while (stop := traced.next_stop()) is not None:
        if stop != AT_SYSCALL:
            continue
        is_inside = not is_inside
        if is_inside and num_entered == number:
            os.kill(traced.pid, signal.SIGKILL)
            os.waitpid(traced.pid, 0)
            return num_entered
        num_entered += is_inside
    return num_entered


class Traced:
    """A copy of this process that runs `act` from one stop to the next."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            _be_traced(act)
        _, status = os.waitpid(self.pid, 0)
        if os.WIFEXITED(status):
            raise NotPermitted
        trace(_SETOPTIONS, self.pid, _OPTIONS)
        self._signal = 0

    def next_stop(self) -> int | None:
        """Lets it go on to where it enters or leaves a system call, or gets a signal; None where it has ended."""
        trace(_SYSCALL, self.pid, self._signal)
        _, status = os.waitpid(self.pid, 0)
        if not os.WIFSTOPPED(status):
            assert os.waitstatus_to_exitcode(status) == 0, "what was traced failed"
            return None
        stop = os.WSTOPSIG(status)
        self._signal = 0 if stop == AT_SYSCALL else stop
        return stop


def _be_traced(act: Callable[[], None]) -> None:
    code = 1
    try:
        trace(_TRACEME, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        act()
        code = 0
    finally:
        os._exit(code)


def trace(request: int, pid: int, data: int, address: int = 0) -> None:
    """One request to the kernel."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    ptrace.restype = ctypes.c_long
    if ptrace(request, pid, address, data) < 0:
        raise NotPermitted(os.strerror(ctypes.get_errno()))
