"""From an exception, or from how a process ended, to the kind of an outcome and a sentence."""

import signal
from collections.abc import Sequence

from foretune.core.errors import UserError
from foretune.core.memory_errors import LackingMemory, lacking_memory, lacking_memory_in
from foretune.executors.outcome import OutcomeKind, TaskFailed

_MOST_LETTERS = 500
_OUT_OF: dict[LackingMemory, OutcomeKind] = {"device": "out of device memory", "host": "out of host memory"}
_FAULTS = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
"""Signals that a program causes itself by what it does wrong."""


def of_exception(error: BaseException) -> tuple[OutcomeKind, str]:
    """What an exception of `perform` means."""
    if isinstance(error, TaskFailed):
        return error.kind, error.reason
    text = f"{type(error).__name__}: {str(error).strip()}"[:_MOST_LETTERS]
    if isinstance(error, UserError):
        return "refused", str(error).strip()[:_MOST_LETTERS]
    if memory := lacking_memory(error):
        return _OUT_OF[memory], text
    return "crashed", text


def of_exit(code: int, log_lines: Sequence[str], memory: str | None) -> tuple[OutcomeKind, str]:
    """What the end of a process means that left no outcome itself.

    `code` is negative for a signal. `memory` says what the kernel reports about memory meanwhile.
    """
    log = "\n".join(log_lines)
    if code >= 0:
        if code != 0 and lacking_memory_in(log) == "host":
            return "out of host memory", f"The process exited with code {code} after it found no memory."
        return "crashed", f"The process exited with code {code} and left no answer."
    name = signal_name(code)
    if name == "SIGABRT" and lacking_memory_in(log) == "host":
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
