"""S1: no file that lies where tensors, states, caches, traces or records are expected runs code, hangs, or takes long.

Each place is read in a process of its own with limits on processor time and address space. Controls: what lies there
normally is read; careless readers execute the same files, and both the canary and the audit hook see it.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ProofSize
from tests.proofs import hostile_pickles
from tests.proofs.fork_server import ForkServer
from tests.proofs.hostile_file_reading import VALID, contents_of
from tests.proofs.hostile_places import PLACES
from tests.proofs.hostile_reading import HangWatch
from tests.proofs.rotation import turn

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(sys.platform != "linux", reason="pipes, devices and the state of processes are Linux's"),
]
_MOST_PROCESSOR_S = 1.0
_HARMLESS = frozenset({"shape_of_a_million_dimensions"})
"""A file that the library reads, because nothing is wrong with it; the model it is for refuses it."""


def chosen_of(name: str, proof_size: ProofSize) -> list[str]:
    """All contents of a place, or a tenth: another one each day and in each place."""
    every = proof_size(1, 10)
    return list(contents_of(PLACES[name]))[(turn() + list(PLACES).index(name)) % every :: every]


def read_in(name: str, contents: list[str], folder: Path, server: ForkServer) -> list[dict[str, Any]]:
    """What came of each content, in order; fewer than there are where one hung or ended the process."""
    answers = folder / "answers.jsonl"
    child = server.start(
        "tests.proofs.hostile_file_reading:read_place",
        name=name,
        contents=contents,
        folder=str(folder),
        answers=str(answers),
    )
    watch = HangWatch(child.pid)
    while (code := child.poll()) is None and not watch.has_hung():
        time.sleep(0.01)
    if code is None:
        child.kill()
    lines = [json.loads(line) for line in answers.read_text().splitlines()] if answers.exists() else []
    if code != 0:
        why = "hung" if code is None else f"ended the process ({code})"
        last = lines[-1]["content"] if lines else "the start"
        pytest.fail(f"{name}: {last} {why}; see {server.log}")
    return [line for line in lines if "end" in line]


def faults_of(name: str, found: dict[str, Any]) -> Iterator[str]:
    """What is wrong with how a hostile file was met."""
    place, what = PLACES[name], found["content"]
    if found["executed"]:
        yield f"{what}: executed {found['executed']}"
    if found["processor_s"] > _MOST_PROCESSOR_S:
        yield f"{what}: took {found['processor_s']:.2f} s of processor time"
    if found["end"] == "crashed":
        yield f"{what}: crashed\n{found['message']}"
    elif not place.is_recreated and what not in _HARMLESS:
        if found["end"] != "refused":
            yield f"{what}: was {found['end']}"
        elif not found["names_file"]:
            yield f"{what}: the message does not name the file: {found['message']}"


@pytest.mark.parametrize("name", PLACES)
def test_s1_no_file_runs_code_or_takes_long(
    name: str,
    tmp_path: Path,
    fork_server: ForkServer,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    contents = chosen_of(name, proof_size)
    normal, again, *found = read_in(name, contents, tmp_path, fork_server)
    for one in (normal, again):
        assert one["end"] == "read" or (PLACES[name].normally_refused_with or "-") in one["message"], one["message"]
    assert not again["executed"]
    assert [one["content"] for one in found] == contents
    faults = [fault for one in found for fault in faults_of(name, one)]
    num_refused = sum(one["end"] == "refused" for one in found)
    slowest_s = max(one["processor_s"] for one in found)
    report_figure(
        f"{name}: {len(found)} hostile files, {sum(bool(one['executed']) for one in found)} executed, {num_refused} "
        f"refused, the slowest after {slowest_s:.2f} s of processor time"
    )
    assert faults == []


def test_s1_there_are_enough_of_them(report_figure: Callable[[str], None]) -> None:
    num_files = sum(len(contents_of(place)) for place in PLACES.values())
    report_figure(f"{num_files} hostile files in {len(PLACES)} places; {len(hostile_pickles.ALL)} of them hold code")
    assert num_files >= 150


def test_s1_control_careless_readers_execute_them(
    tmp_path: Path, fork_server: ForkServer, report_figure: Callable[[str], None]
) -> None:
    answers = tmp_path / "answers.json"
    child = fork_server.start(
        "tests.proofs.hostile_file_reading:read_carelessly", folder=str(tmp_path), answers=str(answers)
    )
    assert child.wait() == 0
    found: dict[str, Any] = json.loads(answers.read_text())
    executed = {name for name, one in found.items() if one["canary"]}
    num_heard = sum(bool(one["heard"]) for one in found.values())
    report_figure(f"careless readers execute {len(executed)} of {len(found)} files; the hook hears {num_heard}")
    assert set(found) - executed == hostile_pickles.FOR_OTHER_READERS
    assert found["os.system"]["heard"]
    assert VALID not in found
