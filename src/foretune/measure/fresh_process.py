"""Measures in a process that has done nothing else: no caches, no memory and no threads are left from before."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from foretune.core.errors import UserError
from foretune.core.memory_errors import lacking_memory_in
from foretune.core.memory_limit import free_host_bytes
from foretune.core.observer import Observer
from foretune.core.thread_waiting import with_passive_waiting
from foretune.executors.classifying import signal_name

_LAST_LINES = 3
_SHARE_OF_FREE_MEMORY = 0.9


def memory_limit_bytes() -> int | None:
    """A limit for a process that computes on the CPU: most of what the system can give.

    A batch that does not fit then ends in an error of its process, not in the end of another one.
    """
    free = free_host_bytes()
    return None if free is None else round(_SHARE_OF_FREE_MEMORY * free)


class Request(Protocol):
    """What a process can be asked."""

    worker: ClassVar[str]
    """The module that is run in the process, and answers."""

    def to_mapping(self) -> dict[str, Any]: ...


class MeasurementFailed(UserError):
    """The process did not come to an answer."""

    exit_code = 1

    def __init__(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(reason if status == "refused" else f"{status.capitalize()} while measuring: {reason}")
        if status == "refused":
            self.exit_code = 2


def ask_fresh_process(request: Request, observer: Observer) -> dict[str, Any]:
    """What a new process answers. It compiles again, as on a machine without compiled code."""
    with tempfile.TemporaryDirectory(prefix="foretune-bench-") as scratch:
        errors = Path(scratch) / "errors.txt"
        with errors.open("wb") as error_file:
            process = subprocess.Popen(
                [sys.executable, "-m", request.worker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=error_file,
                text=True,
                env=with_passive_waiting({**os.environ, **_variables(Path(scratch))}),
            )
            try:
                event = _followed(process, request.to_mapping(), observer)
            except BaseException:
                process.kill()
                raise
            finally:
                process.wait()
        if "answer" in event:
            return dict(event["answer"])
        if "failed" in event:
            raise MeasurementFailed(event["failed"], event["reason"])
        raise _died(process.returncode, errors.read_text(encoding="utf-8", errors="replace"))


def _variables(scratch: Path) -> Mapping[str, str]:
    return {"TORCHINDUCTOR_CACHE_DIR": str(scratch / "compiled"), "TRITON_CACHE_DIR": str(scratch / "triton")}


def _followed(process: "subprocess.Popen[str]", question: dict[str, Any], observer: Observer) -> dict[str, Any]:
    """Passes on what the process tells; returns the last thing it said."""
    assert process.stdin is not None, "asked for a pipe"
    assert process.stdout is not None, "asked for a pipe"
    try:
        process.stdin.write(json.dumps(question))
        process.stdin.close()
    except BrokenPipeError:
        return {}  # it died before it listened; why is in its errors
    event: dict[str, Any] = {}
    for line in process.stdout:
        event = json.loads(line)
        if "message" in event:
            observer.message(event["message"])
        elif "warning" in event:
            observer.warning(event["warning"])
        elif "progress" in event:
            what, done, total = event["progress"]
            observer.preparing(what, done, total)
    return event


def _died(return_code: int, errors: str) -> MeasurementFailed:
    if signal_name(return_code) == "SIGKILL":
        return MeasurementFailed("out of memory", "the system ended the process, as it does when memory runs out")
    last = "; ".join(line.strip() for line in errors.strip().splitlines()[-_LAST_LINES:]) or "it printed nothing"
    # Libraries in C++ can end the process without an exception of Python's.
    status = "failed" if lacking_memory_in(last) is None else "out of memory"
    return MeasurementFailed(status, f"the process ended with code {return_code}: {last}")
