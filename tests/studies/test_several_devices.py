"""Studies and benches on several devices: two processes on this CPU."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.measure.bench_request import TrainingRequest
from foretune.measure.bench_worker import measure_training
from foretune.record.run_directory import RunDirectory
from foretune.sweeps.trial_request import TrialRequest
from foretune.sweeps.trial_worker import perform
from tests.training.rank_runs import run_ranks
from tests.training.short_runs import events_of, losses_of
from tests.training.test_ranks import mapping
from tests.waiting import HANG_S

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

TinyPipeline = Callable[..., Path]
pytestmark = pytest.mark.takes_turns


def answered(forked: "ForkedPython", work: Path, *command: str | Path, given: str | None = None) -> str:
    process = subprocess.run(
        command,
        cwd=work,
        env={**os.environ, **forked.variables},
        input=given,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def studied(forked: "ForkedPython", work: Path, model: Path, **file: Any) -> dict[str, RunDirectory]:
    """The run of each configuration."""
    experiment = {
        "model": str(model),
        "method": {"kind": "full"},
        "data": {"kind": "shapes", "num_samples": 16, "resolution": 32, "cache_dir": str(work / "cache")},
        "train": {"batch_size": 2, "precision": "fp32"},
        "validate": {"num_held_out": 2},
        "parallel": {"device": "cpu"},
    }
    content = {"seeds": [0], "steps": 5, "experiment": experiment, **file}
    (work / "several.yaml").write_text(yaml.safe_dump(content))
    answered(forked, work, forked.foretune, "study", "several.yaml", "--no-plot")
    found = {}
    for name in file["configurations"]:
        (record,) = (work / "studies" / "several" / name / "as-asked" / "seed-0").glob("2*/record.json")
        found[name] = RunDirectory(record.parent)
    return found


def test_the_speed_of_two_devices_is_that_of_the_global_batch(
    tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    runs = studied(
        forked_python,
        tmp_path,
        tiny_pipeline("ddpm"),
        protocol="speed",
        synthetic_data=True,
        configurations={"one": {}, "two": {"parallel.devices": 2}},
    )
    for run, num_samples in ((runs["one"], 2), (runs["two"], 4)):
        record = run.read_record()
        assert record is not None
        assert record.outcome.status == "finished"
        assert len(losses_of(run)) == 5
        assert run.read_experiment()[2]["samples_per_step"] == num_samples
        median_s, rate = record.measured.median_step_s, record.measured.samples_per_s
        assert median_s is not None
        assert rate == pytest.approx(num_samples / median_s, rel=0.5), "samples/s of all devices"
    assert losses_of(runs["one"])[0] != losses_of(runs["two"])[0], "the second process draws other noise"


def test_a_study_trains_on_two_devices_what_one_would(
    tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    runs = studied(
        forked_python,
        tmp_path,
        tiny_pipeline("ddpm"),
        protocol="convergence",
        configurations={"one": {}, "two": {"parallel.devices": 2, "train.batch_size": 1}},
    )
    assert losses_of(runs["two"]) == pytest.approx(losses_of(runs["one"]), rel=1e-5)
    assert runs["two"].read_experiment()[2]["study"]["configuration"] == "two"
    assert runs["two"].read_plan() is not None
    held_out = {name: [event["held_out_loss"] for event in events_of(run, "validated")] for name, run in runs.items()}
    assert held_out["two"] == pytest.approx(held_out["one"], rel=1e-5)


def test_a_part_that_was_stopped_goes_on_with_two_devices(
    tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    asked = mapping(tiny_pipeline("ddpm"), tmp_path, 2)
    (stopped, _) = run_ranks(
        forked_python.python, 2, "trained", mapping=asked, runs=str(tmp_path), by_rank={"0": {"signal_after": 3}}
    )
    assert stopped["status"] == "interrupted"
    run = Path(stopped["run"])
    request = TrialRequest(measure="train", experiment=asked, name="part", folder=str(run.parent))
    imports = "from foretune.sweeps.trial_worker import perform; from foretune.core.observer import Observer"
    code = f"import json, sys; {imports}"
    worker = (forked_python.python, "-c", f"{code}; print(json.dumps(perform(json.load(sys.stdin), Observer())))")
    lines = answered(forked_python, tmp_path, *worker, given=json.dumps(request.to_mapping())).splitlines()
    assert json.loads(lines[-1]) == {"run": run.name}
    assert len(losses_of(RunDirectory(run))) == 10


def test_what_starts_its_own_processes_is_refused_under_a_launcher(
    tiny_pipeline: TinyPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = mapping(tiny_pipeline("ddpm"), tmp_path, 2)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    words = "starts its own processes, and RANK and WORLD_SIZE started 2"
    with pytest.raises(UserError, match=f"A bench {words}"):
        measure_training(TrainingRequest(asked=asked, directory=str(tmp_path)), Observer())
    # A trial joins the processes that were started for it, if they are as many as its devices.
    monkeypatch.setenv("WORLD_SIZE", "3")
    (tmp_path / "part").mkdir()
    trial = TrialRequest(measure="train", experiment=asked, name="part", folder=str(tmp_path / "part"))
    with pytest.raises(UserError, match="RANK and WORLD_SIZE started 3"):
        perform(trial.to_mapping(), Observer())
