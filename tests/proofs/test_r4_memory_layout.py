"""R4 where the memory of a resumed run is not like that of the run before: threads, and the layout of tensors."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.core.observer import Observer
from foretune.record.run_directory import RunDirectory
from foretune.training.train import resume
from tests.matrix.running import as_if_killed_after_the_first_step, num_different
from tests.training.rank_runs import run_ranks
from tests.training.short_runs import short_mapping, short_run

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


@pytest.mark.parametrize("levers", [{"channels_last": True}, {"channels_last": True, "optimizer_offload": True}])
def test_r4_moments_lie_as_their_weights_do(
    levers: dict[str, bool], tiny_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    """A checkpoint holds contiguous tensors; a fused update would give each moment to another weight."""
    sections: dict[str, Any] = {"levers": levers, "train": {"steps": 2}, "save": {"every": 1, "keep": 2}}
    run = short_run(tiny_pipeline("ddpm"), tmp_path, "full", **sections).run
    again = as_if_killed_after_the_first_step(run, tmp_path)
    resume(again, Observer())
    assert num_different(run, again) == 0
