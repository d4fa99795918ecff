"""R1 with two processes: all are killed together at random moments and resumed; the run ends as if never killed."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ProofSize
from tests.proofs.killed_ranks import killed_runs

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

# Whole tensors that one process writes, and shards that both write, in the background.
_ENGINES: dict[str, dict[str, Any]] = {
    "DDP": {"parallel": {"sharding": "none"}},
    "FSDP2": {"parallel": {"sharding": "full"}, "save": {"asynchronous": True}},
}


@pytest.mark.parametrize("engine", list(_ENGINES))
def test_r1_two_processes_killed_together_end_as_if_never_killed(
    engine: str,
    tiny_pipeline: Callable[..., Path],
    tmp_path: Path,
    forked_python: "ForkedPython",
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    sections: dict[str, Any] = {**_ENGINES[engine], "method": {"kind": "full"}}
    seen = killed_runs(
        forked_python, tiny_pipeline("ddpm"), tmp_path, sections, num_kills=proof_size(50, 3), num_steps=24
    )
    report_figure(f"{engine}: {seen.figure()}")
    assert seen.torn == []
    assert seen.different == []
