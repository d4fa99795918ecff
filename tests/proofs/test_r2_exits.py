"""R2: a save that ends at any of its system calls leaves the last committed checkpoint loadable."""

import collections
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ProofSize, lacking
from tests.proofs.fork_server import ForkServer
from tests.proofs.saving import facts_of
from tests.proofs.syscalls import PTRACE

pytestmark = [pytest.mark.proof, pytest.mark.slow]

_LIMIT_S = 1200.0


def test_r2_the_last_committed_step_loads_after_an_end_at_any_system_call(
    fork_server: ForkServer, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    every, result = proof_size(1, 5), tmp_path / "result.json"
    child = fork_server.start(
        "tests.proofs.saving:end_at_every_syscall", folder=str(tmp_path), every=every, result=str(result)
    )
    assert child.wait(_LIMIT_S) == 0, f"see {fork_server.log}"
    facts = facts_of(result)
    if not facts["real"]:
        lacking(PTRACE)
    outcomes, control = collections.Counter(facts["real"]), collections.Counter(facts["naive"])
    num_lost = sum(num for outcome, num in outcomes.items() if outcome.startswith("lost"))
    num_lost_by_control = sum(num for outcome, num in control.items() if outcome.startswith("lost"))
    report_figure(
        f"ended at {outcomes.total()} system calls of a save{'' if every == 1 else f', one in {every}'}: "
        f"{outcomes['step 1']} load the old, {outcomes['step 2']} the new checkpoint, {num_lost} neither; "
        f"control: a writer in place loses {num_lost_by_control} of {control.total()}"
    )
    assert num_lost == 0, outcomes
    # Once committed it stays committed.
    assert facts["real"] == sorted(facts["real"])
    assert outcomes["step 1"] > 0
    assert outcomes["step 2"] > 0
    assert num_lost_by_control > 0
