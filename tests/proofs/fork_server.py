"""Processes that begin at once: copies of one that has imported everything and computed nothing.

A fresh process spends seconds on imports before its first step, and a proof kills hundreds. A copy runs the same
code from there on. The server must not compute: threads of a library do not survive a fork.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from tests.waiting import HANG_S


class Child:
    """A process forked from the server."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server, self.pid = server, pid
        self._code: int | None = None
        self._processor_s = 0.0

    def kill(self) -> None:
        """SIGKILL: it gets no chance to tidy up. Does nothing to one that has ended."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self._code is None:
            answer = self._server.ask({"poll": self.pid})
            self._code, self._processor_s = answer["code"], answer["processor_s"]
        return self._code

    def processor_s(self) -> float:
        """What it has used so far, its own processes not counted; all of it once its end was seen."""
        if self._code is not None:
            return self._processor_s
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait(self, limit_s: float = HANG_S) -> int:
        """The exit code, negative for a signal."""
        end_s = time.monotonic() + limit_s
        while (code := self.poll()) is None:
            assert time.monotonic() < end_s, f"process {self.pid} runs for more than {limit_s} s"
            time.sleep(0.002)
        return code


class ForkServer:
    """The test's side."""

    def __init__(self, log: Path) -> None:
        self.log = log
        paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
        self.environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(log)],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read() == {"ready": True}

    def start(self, function: str, **arguments: Any) -> Child:
        """Calls `module:function` with these arguments, which must be JSON, in a process of its own."""
        return Child(self, self.ask({"start": function, "arguments": arguments})["pid"])

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=HANG_S)


def serve(log: Path) -> None:
    """The server's side: forks when asked, until nobody can ask any more."""
    _import_everything()
    children: set[int] = set()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    _answer(answers, {"ready": True})
    for line in sys.stdin:
        question = json.loads(line)
        if "start" in question:
            pid = os.fork()
            if pid == 0:
                _run_child(question["start"], question["arguments"], log)
            children.add(pid)
            _answer(answers, {"pid": pid})
        else:
            pid, status, used = os.wait4(question["poll"], os.WNOHANG)
            children.discard(pid)
            code = os.waitstatus_to_exitcode(status) if pid else None
            _answer(answers, {"code": code, "processor_s": used.ru_utime + used.ru_stime})
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _answer(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _run_child(function: str, arguments: dict[str, Any], log: Path) -> None:
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, source in ((0, nothing), (1, descriptor), (2, descriptor)):
            os.dup2(source, number)
        module, _, name = function.partition(":")
        getattr(import_module(module), name)(**arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, it must not come back into the server's loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _import_everything() -> None:
    import diffusers
    import torch
    import transformers

    torch.set_num_threads(1)
    for name in ("FluxPipeline", "StableDiffusion3Pipeline", "DDPMPipeline"):
        getattr(diffusers, name)
    for name in ("AutoConfig", "CLIPTextModel", "CLIPTextModelWithProjection", "T5EncoderModel"):
        getattr(transformers, name)
    for name in (
        "foretune.cli.progress",
        "foretune.reports.terminal.run",
        "foretune.training.train",
        "tests.proofs.children",
        "tests.proofs.saving",
    ):
        import_module(name)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
