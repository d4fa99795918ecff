"""S2: whatever a data folder holds, reading it ends, reaches nothing outside, and says which file is to blame.

Each folder is read as a training reads it, in a process of its own with limits on processor time and address space.
The kernel counts who opens anything in the folder outside. Controls: with data.follow_links the same folders are read
from outside, and the count sees it; a reader that takes every name for a file waits for a pipe for ever.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foretune.core.input_files import shown
from tests.conftest import ProofSize
from tests.proofs.fork_server import ForkServer
from tests.proofs.hostile_folders import ALL, SECRET, HostileFolder, make_outside
from tests.proofs.hostile_reading import HangWatch, OpenCount

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(sys.platform != "linux", reason="the count of who opens a file is Linux's"),
]

_LINKED = [case for case in ALL.values() if case.leads_outside]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user of the machine may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o777)
        yield path
        for inner in path.rglob("*"):
            if inner.is_dir() and not inner.is_symlink():
                inner.chmod(0o755)


def came_of(case: HostileFolder, place: Path, server: ForkServer, **keys: Any) -> tuple[dict[str, Any], list[str]]:
    """What came of reading a folder, and what was opened outside of it."""
    folder, outside, cache = place / "data", place / "outside", place / "cache"
    make_outside(outside)
    folder.mkdir()
    case.make(folder, outside)
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    answer = cache / "answer.json"
    choice = {"kind": case.kind, "path": str(folder), "cache_dir": str(cache), **keys}
    count = OpenCount(outside)
    child = server.start(
        "tests.proofs.hostile_reading:read_folder", choice=choice, answer=str(answer), as_nobody=case.is_unreadable
    )
    watch = HangWatch(child.pid)
    while (code := child.poll()) is None and not watch.has_hung():
        time.sleep(0.01)
    if code is None:
        child.kill()
    opened = count.close()
    if not answer.is_file():
        return {"end": "hung" if code is None else f"died ({code})", "message": ""}, opened
    found: dict[str, Any] = json.loads(answer.read_text())
    return found, opened


def faults_of(case: HostileFolder, found: dict[str, Any], opened: list[str]) -> Iterator[str]:
    """What is wrong with how a hostile folder was met."""
    if opened:
        yield f"it opened {sorted(set(opened))} outside"
    if SECRET in json.dumps(found):
        yield "it gave away the secret"
    wanted = "refused" if case.refused_with else "read"
    if found["end"] != wanted:
        yield f"it should be {wanted}, and was {found['end']}: {found.get('message')}"
    elif wanted == "refused":
        message = found["message"]
        yield from (f"the message lacks {words!r}: {message}" for words in case.refused_with if words not in message)
        for problem in found["problems"]:
            if shown(problem) != problem:
                yield f"the message has control characters in it: {problem!r}"


@pytest.mark.parametrize("case", ALL.values(), ids=list(ALL))
def test_s2_no_folder_hangs_or_reaches_outside(case: HostileFolder, place: Path, fork_server: ForkServer) -> None:
    if case.kind == "huggingface":
        pytest.importorskip("datasets")
    found, opened = came_of(case, place, fork_server)
    assert list(faults_of(case, found, opened)) == []
    assert not any(place.rglob("escaped*")), "nothing is written, and no name is executed"


def test_s2_there_are_enough_of_them(report_figure: Callable[[str], None]) -> None:
    num_refused = sum(bool(case.refused_with) for case in ALL.values())
    report_figure(
        f"{len(ALL)} hostile data folders, {num_refused} to be refused by the file's name, {len(ALL) - num_refused} "
        f"to be read; {len(_LINKED)} lead outside where data.follow_links is set"
    )
    assert len(ALL) >= 40


@pytest.mark.parametrize("case", _LINKED, ids=[case.name for case in _LINKED])
def test_s2_control_links_that_are_asked_for_lead_outside(
    case: HostileFolder, place: Path, fork_server: ForkServer
) -> None:
    found, opened = came_of(case, place, fork_server, follow_links=True)
    assert found["end"] == "read"
    assert opened, "the count sees it"
    assert next(faults_of(case, found, opened)).startswith("it opened")


def test_s2_control_a_reader_that_takes_every_name_for_a_file_waits(place: Path, fork_server: ForkServer) -> None:
    os.mkfifo(place / "a.png")
    answer = place / "answer.json"
    child = fork_server.start(
        "tests.proofs.hostile_reading:read_naively", path=str(place / "a.png"), answer=str(answer)
    )
    watch = HangWatch(child.pid, num_looks=3)
    while child.poll() is None and not watch.has_hung():
        time.sleep(0.01)
    assert child.poll() is None
    assert watch.has_hung(), "the watch sees it"
    child.kill()
    child.wait()
    assert not answer.exists()


def test_s2_the_command_refuses_in_a_sentence(place: Path, proof_size: ProofSize) -> None:
    names = ["image_is_a_pipe", "caption_is_a_link_out", "image_is_a_link_to_zeros_without_end"]
    for name in names[: proof_size(len(names), 1)]:
        folder = place / name
        folder.mkdir()
        make_outside(folder / "outside")
        (folder / "data").mkdir()
        ALL[name].make(folder / "data", folder / "outside")
        experiment = folder / "x.yaml"
        experiment.write_text("model: foretune-shapes\ndata: {kind: folder, path: ./data}\ntrain: {steps: 1}\n")
        with (folder / "said.txt").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "foretune.cli.main", "train", str(experiment)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            watch = HangWatch(process.pid)
            while process.poll() is None and not watch.has_hung():
                time.sleep(0.1)
            process.kill()
            process.wait()
        said = (folder / "said.txt").read_text()
        assert process.returncode == 2, said
        assert "Error: " in said
        assert all(words in said for words in ALL[name].refused_with)
        assert SECRET not in said
        assert not any(folder.glob("runs/*/*")), "nothing was made of it"
