"""Ends a process at a chosen system call, by the means of a debugger. Linux only."""

import ctypes
import os
import signal
from collections.abc import Callable

_TRACEME, _SYSCALL, _SETOPTIONS = 0, 24, 0x4200
# Stops at system calls are told apart from signals; the traced process never outlives this one.
_OPTIONS = 0x1 | 0x100000
_AT_SYSCALL = signal.SIGTRAP | 0x80


class NotPermitted(Exception):
    """This system does not let a process trace its child."""


def run_until_syscall(act: Callable[[], None], number: int | None) -> int:
    """Runs `act` in a copy of this process and kills it as it enters its system call of this number, from 0 on.

    Returns how many it has entered; with None it is left to end by itself. This process must have no other threads.
    """
    pid = os.fork()
    if pid == 0:
        _be_traced(act)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        raise NotPermitted
    _trace(_SETOPTIONS, pid, _OPTIONS)
    num_entered, is_inside, pending = 0, False, 0
    while True:
        _trace(_SYSCALL, pid, pending)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            assert number is not None or os.waitstatus_to_exitcode(status) == 0, "what was traced failed"
            return num_entered
        pending = 0
        if os.WSTOPSIG(status) != _AT_SYSCALL:
            pending = os.WSTOPSIG(status)
            continue
        is_inside = not is_inside
        if is_inside and num_entered == number:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return num_entered
        num_entered += is_inside


def _be_traced(act: Callable[[], None]) -> None:
    code = 1
    try:
        _trace(_TRACEME, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        act()
        code = 0
    finally:
        os._exit(code)


def _trace(request: int, pid: int, data: int) -> None:
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    ptrace.restype = ctypes.c_long
    if ptrace(request, pid, None, data) < 0:
        raise NotPermitted(os.strerror(ctypes.get_errno()))
