"""R4 as a user meets it: the resumed run is another process, with torch's own choice of threads."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.record.run_directory import RunDirectory
from tests.matrix.running import as_if_killed_after_the_first_step, num_different
from tests.training.rank_runs import run_ranks
from tests.training.short_runs import short_mapping

pytestmark = [pytest.mark.proof, pytest.mark.takes_turns]


def test_r4_a_resume_in_another_process_adds_in_the_same_order(
    tiny_pipeline: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MKL chooses its threads at each call until a number of threads is set, which a resume does."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    python = Path(sys.executable)
    asked = short_mapping(tiny_pipeline("ddpm"), tmp_path, "full", train={"steps": 2}, save={"every": 1, "keep": 2})
    (trained,) = run_ranks(python, 1, "trained", mapping=asked, runs=str(tmp_path / "runs"))
    run = RunDirectory.open(Path(trained["run"]))
    again = as_if_killed_after_the_first_step(run, tmp_path)
    (resumed,) = run_ranks(python, 1, "trained", resume=str(again.path))
    assert resumed["status"] == "finished"
    assert num_different(run, again) == 0
