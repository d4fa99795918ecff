"""R11: a disk that is full, over its quota or broken at any change of a save costs no checkpoint, and is reported."""

import collections
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ProofSize, lacking
from tests.proofs.fork_server import ForkServer
from tests.proofs.saving import REFUSALS, facts_of
from tests.proofs.syscalls import PTRACE

pytestmark = [pytest.mark.proof, pytest.mark.slow]

_LIMIT_S = 1200.0


def test_r11_the_previous_checkpoint_is_intact_wherever_the_disk_refuses(
    fork_server: ForkServer, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    num_errors, result = proof_size(len(REFUSALS), 1), tmp_path / "result.json"
    child = fork_server.start(
        "tests.proofs.saving:refuse_every_change", folder=str(tmp_path), num_errors=num_errors, result=str(result)
    )
    assert child.wait(_LIMIT_S) == 0, f"see {fork_server.log}"
    facts = facts_of(result)
    if not facts["real"]:
        lacking(PTRACE)
    outcomes = collections.Counter(one["loaded"] for one in facts["real"])
    control = collections.Counter(one["loaded"].split(":")[0] for one in facts["naive"])
    report_figure(
        f"{outcomes.total()} refused changes of a save ({num_errors} of {len(REFUSALS)} errors): "
        f"{outcomes['step 1']} load the old, {outcomes['step 2']} the new checkpoint; "
        f"control: a writer in place loses {control['lost']} of {control.total()}"
    )
    assert set(outcomes) <= {"step 1", "step 2"}, facts["real"]
    assert outcomes["step 1"] > 0
    silent = [one for one in facts["real"] if one["raised"] is None]
    assert silent == [], "whatever was refused is reported"
    # A full disk has its own sentence; a broken one keeps the words of the system.
    unnamed = [one for one in facts["real"] if one["raised"] and one["error"] != "EIO" and one["fault"] is None]
    assert unnamed == []
    assert control["lost"] > 0
