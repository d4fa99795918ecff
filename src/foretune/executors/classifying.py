"""From an exception, or from how a process ended, to the kind of an outcome and a sentence."""

import errno
import re
import signal
from collections.abc import Sequence

from foretune.core.errors import UserError
from foretune.executors.outcome import OutcomeKind, TaskFailed

_MOST_LETTERS = 500
_DEVICE_MEMORY = re.compile(
    r"(CUDA|HIP|MPS backend|XPU) (error: )?out of memory|CU(BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED|hipErrorOutOfMemory",
    re.IGNORECASE,
)
_HOST_MEMORY = re.compile(
    r"DefaultCPUAllocator|std::bad_alloc|Cannot allocate memory|MemoryError|can't start new thread"
    r"|Thread creation failed: Resource temporarily unavailable"
)
"""Also what libraries of threads print where the limit of the process leaves no memory for another stack."""
_FAULTS = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
"""Signals that a program causes itself by what it does wrong."""


def of_exception(error: BaseException) -> tuple[OutcomeKind, str]:
    """What an exception of `perform` means."""
    if isinstance(error, TaskFailed):
        return error.kind, error.reason
    text = f"{type(error).__name__}: {str(error).strip()}"[:_MOST_LETTERS]
    if isinstance(error, UserError):
        return "refused", str(error).strip()[:_MOST_LETTERS]
    if _is_of_device(error):
        return "out of device memory", text
    if isinstance(error, MemoryError) or _HOST_MEMORY.search(text) or getattr(error, "errno", None) == errno.ENOMEM:
        return "out of host memory", text
    return "crashed", text


def _is_of_device(error: BaseException) -> bool:
    """torch's class by its name: this layer does not import torch."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    is_torch = any(name.startswith("torch.") and name.endswith("OutOfMemoryError") for name in names)
    return is_torch or bool(_DEVICE_MEMORY.search(str(error)))


def of_exit(code: int, log_lines: Sequence[str], memory: str | None) -> tuple[OutcomeKind, str]:
    """What the end of a process means that left no outcome itself.

    `code` is negative for a signal. `memory` says what the kernel reports about memory meanwhile.
    """
    log = "\n".join(log_lines)
    if code >= 0:
        if code != 0 and _HOST_MEMORY.search(log):
            return "out of host memory", f"The process exited with code {code} after it found no memory."
        return "crashed", f"The process exited with code {code} and left no answer."
    name = signal_name(code)
    if name == "SIGABRT" and _HOST_MEMORY.search(log):
        return "out of host memory", "The process aborted because it found no memory (SIGABRT)."
    if name in _FAULTS:
        return "crashed", f"The process ended by {name}{_EXPLAINED.get(name, '')}."
    if name == "SIGKILL" and memory is not None:
        return "out of host memory", f"The process was ended by SIGKILL, and {memory}."
    whom = "The kernel reports no lack of memory, so that another process sent it." if name == "SIGKILL" else ""
    return "killed", f"The process was ended by {name}. {whom}".strip()


_EXPLAINED = {
    "SIGSEGV": ", a segmentation fault",
    "SIGBUS": ", an access to memory that is not there, as where shared memory is full",
    "SIGILL": ", an instruction that this processor does not have",
    "SIGABRT": ": it aborted itself",
}


def signal_name(code: int) -> str | None:
    """The name of the signal in a negative exit code; None for another code."""
    if code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
