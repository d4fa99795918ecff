"""`foretune demo`, cut short: the same parts in the same order, two of its three trainings for a second each."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from foretune.analyse.evaluations import evaluation_of
from foretune.analyse.run_data import runs_in
from foretune.cli.main import app
from foretune.studies.demo import preparing, running


@pytest.mark.slow
@pytest.mark.usefixtures("processes_begin_at_once")
def test_the_demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = yaml.safe_load(preparing.STUDY.read_text(encoding="utf-8"))
    study["seconds"] = 1
    study["experiment"]["data"]["num_samples"] = 40
    study["configurations"] = {name: study["configurations"][name] for name in ("full", "lora")}
    study["evaluate"] |= {
        "metrics": ["style"],
        "prompts": ["a large red circle on blue", "a large green cross on black"],
    }
    short = tmp_path / "demo.yaml"
    short.write_text(yaml.safe_dump(study), encoding="utf-8")
    monkeypatch.setattr(preparing, "STUDY", short)
    # One second each whatever the machine makes of it, and no time for more seeds.
    monkeypatch.setattr(running, "MOST_SECONDS", 1.0)
    monkeypatch.setattr(running, "WHOLE_S", 0.0)
    folder = tmp_path / "made"
    result = CliRunner().invoke(app, ["demo", "--no-open", "--folder", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "rtx-4090" in result.output
    assert "does not fit" in result.output
    runs = runs_in(folder / "demo")
    assert len(runs) == 2
    for run in runs:
        evaluation = evaluation_of(run.path)
        assert run.has_finished
        assert evaluation is not None
        assert evaluation.score("style") is not None
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(run.run_id in page for run in runs)
    assert "rtx-4090" in (folder / "plan.html").read_text(encoding="utf-8").lower().replace(" ", "-")


def test_without_torchao_the_third_training_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "find_spec", lambda name: None)
    file, left_out = preparing.write_demo_study(tmp_path)
    assert "foretune[quantize]" in left_out[0]
    assert list(yaml.safe_load(file.read_text())["configurations"]) == ["full", "lora"]
