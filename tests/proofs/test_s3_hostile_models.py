"""S3: no model folder runs code, wherever a library would take it from.

Controls: the same folder without the change is loaded; diffusers itself, given one of these folders, imports the module
that it names.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ProofSize
from tests.proofs.fork_server import ForkServer
from tests.proofs.hostile_models import ALL
from tests.proofs.rotation import turn
from tests.waiting import HANG_S

pytestmark = [pytest.mark.proof, pytest.mark.skipif(sys.platform != "linux", reason="pipes and devices are Linux's")]


def faults_of(found: dict[str, Any]) -> Iterator[str]:
    """What is wrong with how a hostile folder was met."""
    words = ALL[found["name"]].refused_with
    if found["executed"]:
        yield f"executed {found['executed']}"
    if words is None and found["end"] != "loaded":
        yield f"should be loaded: {found['end']} {found['message']}"
    if words is not None and (found["end"] != "refused" or words not in found["message"]):
        yield f"should be refused with {words!r}: {found['end']} {found['message']}"
    if "canary of the folder outside" in found["message"]:
        yield "gave away the secret"


def test_s3_no_model_folder_runs_code(
    tmp_path: Path, fork_server: ForkServer, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    every = proof_size(1, 10)
    names = list(ALL)[turn() % every :: every]
    answers = tmp_path / "answers.jsonl"
    (tmp_path / "place").mkdir()
    child = fork_server.start(
        "tests.proofs.hostile_model_reading:load_all",
        names=names,
        folder=str(tmp_path / "place"),
        answers=str(answers),
    )
    assert child.wait(limit_s=10 * HANG_S) == 0, fork_server.log.read_text()[-2000:]
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    harmless, again, *found = [line for line in lines if "end" in line]
    assert [harmless["end"], again["end"]] == ["loaded", "loaded"], harmless["message"]
    assert again["executed"] == []
    assert [one["name"] for one in found] == names
    faults = {one["name"]: list(faults_of(one)) for one in found}
    report_figure(
        f"{len(found)} of {len(ALL)} hostile model folders: {sum(bool(one['executed']) for one in found)} executed, "
        f"{sum(one['end'] == 'refused' for one in found)} refused by name, "
        f"{sum(one['end'] == 'loaded' for one in found)} loaded without the code beside them"
    )
    assert {name: listed for name, listed in faults.items() if listed} == {}


def test_s3_there_are_enough_of_them() -> None:
    assert len(ALL) >= 40
