"""`python` and `foretune` that begin at once: copies of a process that has imported everything and computed nothing.

A process of Foretune spends seconds on imports before it does anything, and tests start hundreds. A copy runs the same
code from there on, in the folder, with the environment, the input and the outputs of the one who asked. What is lost is
the start itself, so some commands are still started from nothing: those of `tests/cli/test_start.py` and
`tests/packaging/test_core_install.py`, and the story of `tests/cli/test_training_verbs.py`, which also sees what
libraries print while they are imported. Libraries read some variables once, when they are imported: where these are not
the server's, a new process is started as well. Limits and priorities are the server's.

The server must not compute: threads of a library do not survive a fork.
"""

import gc
import json
import os
import pkgutil
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Self

from foretune.core.thread_waiting import with_passive_waiting
from foretune.executors.preloading import no_device_seen
from tests.forked_client import PASSED_ON
from tests.waiting import HANG_S

_ROOT = Path(__file__).parents[1]
_CLIENT = Path(__file__).with_name("forked_client.py")
_SET_BY_THE_PROGRAM = {
    "DIFFUSERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "KINETO_LOG_LEVEL": "99",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Foretune sets these itself before it imports a library, where the user has not. They decide what is printed."""
_READ_ONCE = (
    "ATEN_", "CUDA_", "DIFFUSERS_", "DNNL_", "GOMP_", "HF_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_",
    "ONEDNN_", "OPENBLAS_", "PYTHON", "PYTORCH_", "SIMACCEL", "TORCH_", "TRANSFORMERS_", "TZ",
)  # fmt: skip
"""Beginnings of the names of variables that Python and libraries read when they start or are imported."""


_READ_LATER = frozenset({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"})
"""Names that begin as those do, but are read when they are needed."""


class ForkedPython:
    """The test's side: two commands in a folder, for as long as it is open."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="foretune-forked-"))
        self.python, self.foretune = self.folder / "bin" / "python", self.folder / "bin" / "foretune"
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        self.variables = {"PATH": path, "PYTHONPATH": str(_ROOT / "src")}
        """An environment with these finds both commands."""
        self.log = self.folder / "log.txt"
        """A line for each process: its number, or the variables for which it was started from nothing."""
        address = self.folder / "socket"
        self.python.parent.mkdir()
        can_fork = hasattr(os, "pidfd_open")
        asking = f'"{sys.executable}" -IS "{_CLIENT}" "{address}"' if can_fork else ""
        for command, more in ((self.python, ""), (self.foretune, " -m foretune.cli.main")):
            command.write_text(f'#!/bin/sh\nexec {asking} "{sys.executable}"{more} "$@"\n')
            command.chmod(0o755)
        self._process = None
        if can_fork:
            paths = os.pathsep.join((str(_ROOT / "src"), str(_ROOT)))
            with self.log.open("w") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(address), str(self.python)],
                    env={**os.environ, "PYTHONPATH": paths},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
            assert self._process.stdout is not None
            assert self._process.stdout.readline() == b"ready\n", self.log.read_text()

    @property
    def server_pid(self) -> int:
        """The process of which all others are copies, and whose children they are."""
        assert self._process is not None, "nothing can be copied here"
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate(timeout=HANG_S)
        shutil.rmtree(self.folder)


def read_once(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a process of Foretune would have when it imports libraries, of those that matter then."""
    complete = with_passive_waiting({**_SET_BY_THE_PROGRAM, **environment})
    # The server finds the Foretune that is tested; whoever leaves the path out finds the same one.
    complete["PYTHONPATH"] = environment.get("PYTHONPATH") or str(_ROOT / "src")
    return {name: value for name, value in complete.items() if name.startswith(_READ_ONCE) and name not in _READ_LATER}


@dataclass
class _Child:
    pid: int
    connection: socket.socket


class _Server:
    """Forks when asked, until the one who started it is gone."""

    def __init__(self, address: str) -> None:
        self._own = read_once({**os.environ, "PYTHONPATH": ""})
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)
        self._children: dict[int, _Child] = {}
        """By the descriptor that tells of its end."""

    def serve(self) -> dict[str, Any] | None:
        """In a copy, what it was asked to do; in the server itself None, when there is nobody left to ask."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    question = self._answer()
                    if question is not None:
                        return question
                elif key.fd == 0:
                    for child in self._children.values():
                        os.kill(child.pid, signal.SIGKILL)
                    return None
                elif key.fd in self._children:
                    self._end(key.fd)
                else:
                    self._pass_on(key.fileobj)

    def _answer(self) -> dict[str, Any] | None:
        connection, _ = self._listener.accept()
        size, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
        (num_bytes,) = struct.unpack("!I", size)
        text = b""
        while num_bytes > len(text):
            text += connection.recv(num_bytes - len(text))
        question: dict[str, Any] = json.loads(text)
        asked = read_once(question["environment"])
        different = sorted(name for name, _ in asked.items() ^ self._own.items())
        pid = None if different else os.fork()
        if pid == 0:
            self._become(question, descriptors)
            return question
        for descriptor in descriptors:
            os.close(descriptor)
        _log(f"{pid or 'refused: ' + ' '.join(different)} {question['module']} {question['arguments']}")
        if pid is None:
            connection.sendall(b'{"code": null}\n')
            connection.close()
            return None
        ends = os.pidfd_open(pid)
        self._children[ends] = _Child(pid, connection)
        self._selector.register(ends, selectors.EVENT_READ)
        self._selector.register(connection, selectors.EVENT_READ, pid)
        return None

    def _end(self, ends: int) -> None:
        child = self._children.pop(ends)
        _, status = os.waitpid(child.pid, 0)
        self._selector.unregister(ends)
        os.close(ends)
        if child.connection.fileno() >= 0:
            self._selector.unregister(child.connection)
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError):  # the asking process was killed meanwhile
                child.connection.sendall(json.dumps({"code": code}).encode() + b"\n")
            child.connection.close()

    def _pass_on(self, connection: Any) -> None:
        """Signals that the asking process got. One that was killed can pass on nothing: its copy ends with it."""
        if connection.fileno() < 0:
            return  # the child ended in the same round
        pid = self._selector.get_key(connection).data
        numbers = connection.recv(16)
        for number in numbers or (signal.SIGKILL,):
            os.kill(pid, number)
        if not numbers:
            self._selector.unregister(connection)
            connection.close()

    def _become(self, question: dict[str, Any], descriptors: list[int]) -> None:
        for child in self._children.values():
            child.connection.close()
        for descriptor in self._children:
            os.close(descriptor)
        self._listener.close()
        self._selector.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(question["folder"])
        os.environ.clear()
        # The server's threads wait this way, whatever the entry point finds to be too late.
        os.environ.update(with_passive_waiting(question["environment"]))
        # As a new process has it: where a shell started the tests in the background, the server ignores SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)


def _log(line: str) -> None:
    os.write(2, f"{line}\n".encode())


def _run(module: str, arguments: list[str], folder: str) -> None:
    """As `python -m` does it."""
    assert isinstance(sys.stdout, TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    sys.path = [folder, *(path for path in sys.path[1:] if path != str(_ROOT))]
    sys.argv = [module, *arguments]
    is_package = hasattr(sys.modules.get(module), "__path__")
    sys.modules.pop(f"{module}.__main__" if is_package else module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def import_everything() -> None:
    """What processes of Foretune import sooner or later, but for trackers, which are large and rarely asked for."""
    from foretune.core.library_noise import hush

    hush()
    import diffusers
    import torch._dynamo
    import torch.profiler  # noqa: F401
    import transformers

    for name in ("DiffusionPipeline", "FluxPipeline", "StableDiffusion3Pipeline", "DDPMPipeline"):
        getattr(diffusers, name)
    for name in ("AutoConfig", "AutoTokenizer", "CLIPTextModel", "CLIPTextModelWithProjection", "T5EncoderModel"):
        getattr(transformers, name)
    import foretune

    for found in pkgutil.walk_packages(foretune.__path__, "foretune."):
        if not found.name.startswith("foretune.training.trackers.") and not found.name.endswith("__main__"):
            import_module(found.name)


def main() -> None:
    """`python -m tests.forked_python SOCKET PYTHON`: the server, and each of its copies."""
    address, python = sys.argv[1:]
    os.environ.update(with_passive_waiting({**_SET_BY_THE_PROGRAM, **os.environ}))
    # A copy can use a GPU only if the server has not.
    with no_device_seen():
        import_everything()
    # Processes that a copy starts are copies, too.
    sys.executable = python
    gc.collect()
    gc.freeze()
    # A signal for a copy that comes before it is ready waits until it is.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    server = _Server(address)
    os.write(1, b"ready\n")
    question = server.serve()
    if question is not None:
        _run(question["module"], question["arguments"], question["folder"])


if __name__ == "__main__":
    main()
