"""H19: plants one bug after the other in a copy of the project and shows that a test notices each of them.

    python -m tests.mutants.plant                     all of them
    python -m tests.mutants.plant checkpoint order    those with one of these words in their name
    python -m tests.mutants.plant 1/3                 the first of three parts, to run the others beside it
    python -m tests.mutants.plant --gpu [...]         those that a GPU shows, on the simulated one
    python -m tests.mutants.plant --gpu-on-cpu [...]  the same by their nearest tests without a GPU, as a baseline

Each bug of `bugs_of_*.py` is planted alone, and the tests that it names are run until the first one fails; that one is
run again without the bug and must pass, or it has shown nothing. A bug that all of them pass is a survivor: a test is
missing, and the exit status is 1.

Tests run in copies of this process, which has imported the libraries and nothing of the project: that saves most of the
time.
"""

import importlib
import itertools
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from unittest import mock

from tests.mutants import bugs_of_gpus
from tests.mutants.bug import Bug
from tests.mutants.bugs import BUGS

ROOT = Path(__file__).parents[2]
_PARTS = ("src", "simaccel", "tests", "docs", "examples", "benchmarks", "pyproject.toml", "README.md", "CHANGELOG.md")
_LIBRARIES = (
    "bitsandbytes", "diffusers", "hypothesis", "numpy", "peft", "PIL.Image", "pydantic", "pytest", "rich.console",
    "safetensors.torch", "torch", "torch.utils.flop_counter", "torchao", "torchmetrics", "transformers", "typer",
    "yaml",
)  # fmt: skip
_LAZY = (
    ("diffusers", ("FluxPipeline", "StableDiffusion3Pipeline", "DDPMPipeline")),
    ("transformers", ("AutoConfig", "CLIPTextModel", "CLIPTextModelWithProjection", "T5EncoderModel")),
)
_GPU, _GPU_ON_CPU = "--gpu", "--gpu-on-cpu"
_PLACES: dict[str, Callable[[], Sequence[Bug]]] = {
    "": lambda: BUGS,
    _GPU: lambda: bugs_of_gpus.BUGS,
    _GPU_ON_CPU: lambda: [bug._replace(tests=bug.cpu_tests) for bug in bugs_of_gpus.BUGS],
}
_PASSED, _FAILED = 0, 1
_stamps_s = itertools.count(1_000_000_000)
_MOST_PROCESSOR_S = 900
"""A bug may make a loop endless."""


@dataclass(frozen=True)
class Result:
    """How a run of pytest ended."""

    status: int
    """Its exit status; negative is the signal that ended it."""
    failed: tuple[str, ...]
    """The tests that failed: one, because the run ends there."""
    output: str


def main(words: Sequence[str]) -> int:
    where, words = (words[0], words[1:]) if words and words[0] in _PLACES else ("", words)
    table = _PLACES[where]()
    bugs = _chosen(table, words)
    if not bugs:
        print(f"No bug has {' or '.join(words)} in its name. There are: {'; '.join(bug.name for bug in table)}")
        return 2
    if where == _GPU:
        # Read when torch is imported, and by tests that run in turn in CI.
        os.environ |= {"SIMACCEL": "cuda", "FORETUNE_PROOFS": "full"}
        # Libraries ask for the capability of a GPU, and a copy of a process that has initialised CUDA cannot use it.
        with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):
            _import_libraries()
    else:
        _import_libraries()
    survivors = []
    with tempfile.TemporaryDirectory(prefix="foretune-mutants-") as folder:
        copy = Path(folder)
        _copy_project(copy)
        for number, bug in enumerate(bugs, start=1):
            began_s = time.monotonic()
            is_noticed, how = _noticed(copy, bug)
            print(f"{number:3d}/{len(bugs)} {bug.name}: {how}, {time.monotonic() - began_s:.0f} s", flush=True)
            if not is_noticed:
                survivors.append(bug)
    print(f"{len(bugs) - len(survivors)} of {len(bugs)} planted bugs were noticed; survivors: {len(survivors)}")
    for bug in survivors:
        print(f"  {bug.file}: {bug.name}; see {', '.join(bug.tests)}")
    return 1 if survivors else 0


def _chosen(table: Sequence[Bug], words: Sequence[str]) -> list[Bug]:
    if len(words) == 1 and (part := re.fullmatch(r"(\d+)/(\d+)", words[0])):
        number, num_parts = int(part[1]), int(part[2])
        return list(table[number - 1 :: num_parts])
    return [bug for bug in table if not words or any(word in bug.name for word in words)]


def _noticed(copy: Path, bug: Bug) -> tuple[bool, str]:
    path = copy / bug.file
    whole = path.read_text(encoding="utf-8")
    assert whole.count(bug.old) == 1, f"{bug.file} has {bug.old!r} {whole.count(bug.old)} times"
    try:
        _write(path, whole.replace(bug.old, bug.new))
        found = _run(copy, bug.tests)
    finally:
        _write(path, whole)
    if found.status == _PASSED:
        return False, "SURVIVES"
    if found.status == -signal.SIGXCPU:
        return True, f"noticed: its tests do not end within {_MOST_PROCESSOR_S} s of processor time"
    if found.status != _FAILED or not found.failed:
        return False, f"ITS TESTS CANNOT BE RUN (status {found.status})\n{found.output}"
    without = _run(copy, found.failed)
    if without.status != _PASSED:
        return False, f"ITS TEST FAILS WITHOUT IT TOO\n{without.output}"
    return True, f"noticed by {found.failed[0].rpartition('::')[2]}"


def _write(path: Path, text: str) -> None:
    """Each time with another time of change, by which Python tells whether its bytecode is still that of the file: one
    that changes twice in a second would be taken for what it was before.
    """
    path.write_text(text, encoding="utf-8")
    stamp_s = next(_stamps_s)
    os.utime(path, (stamp_s, stamp_s))


def _run(copy: Path, tests: Sequence[str]) -> Result:
    output, answer = copy / "output.txt", copy / "failed.json"
    answer.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        _be_pytest(copy, tests, output, answer)
    _, status = os.waitpid(pid, 0)
    failed = tuple(json.loads(answer.read_text())) if answer.is_file() else ()
    return Result(os.waitstatus_to_exitcode(status), failed, output.read_text(errors="replace"))


def _be_pytest(copy: Path, tests: Sequence[str], output: Path, answer: Path) -> NoReturn:
    status = 70
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (_MOST_PROCESSOR_S, _MOST_PROCESSOR_S + 10))
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(copy)
        sources = [str(copy / "src"), str(copy / "simaccel/src")]
        os.environ["PYTHONPATH"] = os.pathsep.join(sources)
        own = {"", str(ROOT), *(str(ROOT / path) for path in ("src", "simaccel/src"))}
        sys.path[:] = [*sources, *(path for path in sys.path if path not in own)]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        status = _pytest(tests, answer)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _pytest(tests: Sequence[str], answer: Path) -> int:
    import hypothesis
    import pytest

    class Recorder:
        """Writes down which test failed."""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                answer.write_text(json.dumps([report.nodeid]))

    # The same examples each time; how long one takes says nothing about a bug.
    hypothesis.settings.register_profile("planted", derandomize=True, deadline=None, database=None)
    hypothesis.settings.load_profile("planted")
    marked = ("-m", "gpu or simulated") if os.environ.get("SIMACCEL") else ()
    options = ("-q", "-x", "-p", "no:cacheprovider", "--no-header", *marked)
    return int(pytest.main([*options, *tests], plugins=[Recorder()]))


def _import_libraries() -> None:
    """Nothing of the project among them: its modules must be read with the bug in them."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "OMP_NUM_THREADS"):
        os.environ[name] = "1"
    for name in _LIBRARIES:
        importlib.import_module(name)
    for name, members in _LAZY:
        for member in members:
            getattr(importlib.import_module(name), member)
    assert "foretune" not in sys.modules


def _copy_project(copy: Path) -> None:
    for name in _PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, copy / name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
