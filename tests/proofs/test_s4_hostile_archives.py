"""S4: whatever an archive holds, importing it writes nothing outside, ends soon, and needs little memory.

Each is imported by a small process that notes what it writes; the folder around is compared afterwards. Controls: a
careful-looking reader that joins names to a folder writes outside, and the comparison sees it; ordinary archives of all
kinds are imported whole.
"""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ProofSize
from tests.proofs.hostile_archives import ALL, GOOD, picture, zip_of
from tests.proofs.rotation import turn

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(sys.platform != "linux", reason="peak memory and pipes are measured as Linux does"),
]
_ROOT = Path(__file__).parents[2]
_MOST_PROCESSOR_S = 2.0
_MOST_BYTES = 300 * 10**6


def faults_of(found: dict[str, Any]) -> Iterator[str]:
    """What is wrong with how a hostile archive was met."""
    case = ALL[found["name"]]
    if found["outside"] or found["left"]:
        yield f"wrote or ran {found['outside']}, left {found['left']}"
    if found["odd"]:
        yield f"made links, or files that may be run: {found['odd']}"
    if found["processor_s"] > _MOST_PROCESSOR_S or found["peak_bytes"] > _MOST_BYTES:
        yield f"took {found['processor_s']:.1f} s of processor time and {found['peak_bytes'] / 1e6:.0f} MB"
    if case.refused_with is not None:
        is_refused = found["end"] == "refused" and case.refused_with in found["message"]
        if not is_refused or "hostile.archive" not in found["message"] or found["files"]:
            yield f"should be refused with {case.refused_with!r}: {found['end']} {found['message'][-500:]}"
    elif found["end"] != "imported" or GOOD not in found["files"]:
        yield f"should be imported: {found['end']} {found['message'][-500:]}"
    elif case.skipped_with and not any(case.skipped_with in reason for reason in found["skipped"]):
        yield f"should be skipped with {case.skipped_with!r}: {found['skipped']}"


def test_s4_no_archive_writes_outside_or_takes_long(
    tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    every = proof_size(1, 10)
    names = list(ALL)[turn() % every :: every]
    subprocess.run(
        [sys.executable, "-m", "tests.proofs.archive_reading", str(tmp_path), *names],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, sys.path)])},
        check=True,
    )
    found = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [one["name"] for one in found] == names
    faults = {one["name"]: list(faults_of(one)) for one in found}
    num_outside = sum(bool(one["outside"] or one["left"]) for one in found)
    num_refused = sum(one["end"] == "refused" for one in found)
    report_figure(
        f"{len(found)} of {len(ALL)} hostile archives: {num_outside} wrote outside, {num_refused} refused, at most "
        f"{max(one['processor_s'] for one in found):.2f} s of processor time and "
        f"{max(one['peak_bytes'] for one in found) / 1e6:.0f} MB"
    )
    assert {name: listed for name, listed in faults.items() if listed} == {}


def test_s4_there_are_enough_of_them() -> None:
    assert len(ALL) >= 60


def test_s4_control_joined_names_lead_outside(tmp_path: Path) -> None:
    place = tmp_path / "place" / "output"
    place.mkdir(parents=True)
    (tmp_path / "a.zip").write_bytes(zip_of(("../escaped.png", picture())))
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        for name in archive.namelist():
            (place / name).write_bytes(archive.read(name))
    assert sorted(path.name for path in place.parent.iterdir()) == ["escaped.png", "output"]
