"""R18: the same seed gives the same run in every fresh process, and a profiler changes nothing, even if it crashes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.config.reading import understand
from foretune.core.observer import Observer
from foretune.record.run_directory import RunDirectory
from foretune.training.profiling import instrument
from foretune.training.train import train
from tests.conftest import ProofSize
from tests.proofs.conftest import TinyModels
from tests.proofs.ends import End, end_of
from tests.proofs.resume_cells import Cell

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

_ROOT = Path(__file__).parents[2]
_CELL = Cell.from_row("sd3 lora-dropout fp32 1 ema 2 0 linear cached validates dies-after-step")
_FAULTY = ("_start", "_end_step", "_stop", "_write")


def experiment_of(models: TinyModels) -> dict[str, Any]:
    return _CELL.experiment(str(models.path(_CELL.family)), str(models.cache), "cpu")


def ended(experiment: dict[str, Any], runs: Path) -> tuple[End, RunDirectory]:
    """In this process, where a fault can be planted."""
    trained = train(understand(experiment, source=None), runs, Observer())
    return end_of(trained.run), trained.run


def in_fresh_process(experiment: dict[str, Any], folder: Path, number: int) -> End:
    folder.mkdir()
    (folder / "experiment.yaml").write_text(json.dumps(experiment))  # JSON is YAML
    subprocess.run(
        [sys.executable, "-m", "foretune", "train", "experiment.yaml"],
        # The order of sets and of addresses differs, as it does between two starts of a user.
        env={**os.environ, "PYTHONPATH": str(_ROOT / "src"), "PYTHONHASHSEED": str(number)},
        cwd=folder,
        capture_output=True,
        check=True,
    )
    return end_of(RunDirectory.open(folder / "runs" / "cell" / "latest"))


def test_r18_fresh_processes_end_in_the_same_hash(
    tiny_models: TinyModels, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    experiment, num = experiment_of(tiny_models), proof_size(20, 2)
    ends = [in_fresh_process(experiment, tmp_path / str(number), number) for number in range(num)]
    different = [number for number, end in enumerate(ends) if ends[0].differences(end)]
    report_figure(f"{num - len(different)} of {num} fresh processes ended in the same hash")
    assert different == []
    other = {**experiment, "train": {**experiment["train"], "seed": 1}}
    assert ends[0].differences(in_fresh_process(other, tmp_path / "other", 0)), "another seed is another run"


def test_r18_a_profiler_changes_nothing_and_may_crash(
    tiny_models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report_figure: Callable[[str], None]
) -> None:
    experiment = experiment_of(tiny_models)
    plain, _ = ended(experiment, tmp_path / "plain")
    profiled = {**experiment, "profile": {"at_step": 2, "steps": 2}}
    with_profiler, run = ended(profiled, tmp_path / "profiled")
    assert any(run.profile.iterdir())
    assert plain.differences(with_profiler) == []
    for name in _FAULTY:
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise RuntimeError("planted")

            patch.setattr(instrument.Profiler, name, fail)
            crashed, run = ended(profiled, tmp_path / name)
        record = run.read_record()
        assert record is not None
        assert any("Profiler failed" in warning and "planted" in warning for warning in record.warnings), name
        assert plain.differences(crashed) == [], name
    report_figure(f"profiler on and off: same hash; a crash in {len(_FAULTY)} places: same hash, reported")
