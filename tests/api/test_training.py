"""From an experiment to an export, as a notebook would do it: nothing is printed, nothing is left changed."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

import foretune as ft
from foretune.api.start import import_libraries
from foretune.core.interrupts import Interrupted
from tests.api.process import changed, process_state
from tests.record.programs import make_program

pytestmark = pytest.mark.usefixtures("processes_begin_at_once")
PROMPT = "a small red circle on blue"


class Heard(ft.Observer):
    """Counts what was reported to it."""

    patience_s = 0.0

    def __init__(self, on_step: Callable[[int], None] = lambda _: None) -> None:
        self.steps: list[ft.StepReport] = []
        self.planned_bytes = 0
        self.num_imports = 0
        self._on_step = on_step

    def imported(self) -> None:
        self.num_imports += 1

    def planned(self, plan: Any) -> None:
        self.planned_bytes = plan.process_bytes

    def stepped(self, report: ft.StepReport) -> None:
        self.steps.append(report)
        self._on_step(report.step + 1)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory for the whole file, with a tiny pipeline in it."""
    folder = tmp_path_factory.mktemp("notebook")
    before = Path.cwd()
    os.chdir(folder)
    ft.tiny("flux", "tiny-flux")
    yield folder
    os.chdir(before)


def experiment(**train: Any) -> dict[str, Any]:
    return {
        "name": "notebook",
        "model": "tiny-flux",
        "method": {"kind": "lora", "rank": 4},
        "data": {"kind": "shapes", "num_samples": 8, "resolution": 32, "held_out": 0.25},
        "train": {"steps": 3, "batch_size": 2, "precision": "fp32", **train},
        "validate": {"prompts": [PROMPT], "num_inference_steps": 2},
        "parallel": {"device": "cpu"},
    }


@pytest.fixture(scope="module")
def run(work: Path) -> ft.Run:
    return ft.train(experiment(), {"optimizer.lr": 1e-2})


def test_a_card_that_torch_does_not_use_is_reported_before_training_on_the_cpu(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    make_program(tmp_path, "nvidia-smi", 'test "$1" = "--query-gpu=name" && echo NVIDIA GeForce RTX 4090', monkeypatch)
    warnings: list[str] = []
    observer = ft.Observer()
    monkeypatch.setattr(observer, "warning", warnings.append)
    import_libraries(observer, device="cpu")
    assert warnings == [], "the CPU was requested"
    ft.train(experiment(steps=1), {"parallel.device": "auto"}, runs=tmp_path / "runs", observer=observer)
    (text,) = [text for text in warnings if "RTX 4090 is not used" in text]
    assert "everything runs on the CPU. Run: uv pip install" in text
    assert "\n" not in text


class Reached(Exception):
    """Raised where a verb would import torch."""


def test_verbs_that_compute_look_for_cards_that_torch_does_not_use(
    run: ft.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = []

    def reached(*_: object, device: str | None = None, **__: object) -> NoReturn:
        devices.append(device)
        raise Reached

    verbs: dict[str, Callable[[], object]] = {
        "evaluate": lambda: ft.evaluate(run),
        "sample": lambda: ft.sample("tiny-flux", prompts=[PROMPT], output=tmp_path / "a.png"),
        "export": lambda: ft.export(run, tmp_path / "export"),
    }
    for name, call in verbs.items():
        monkeypatch.setattr(f"foretune.api.{name}.import_libraries", reached)
        with pytest.raises(Reached):
            call()
    assert devices == ["auto"] * 3


def test_a_finished_run_is_a_value(run: ft.Run, work: Path) -> None:
    assert run.status == "finished"
    assert run.record is not None
    assert run.record.outcome.steps_done == 3
    assert run.experiment.optimizer.lr == 1e-2
    assert run.num_changed_tensors == run.num_trained_tensors
    assert run.base_unchanged
    assert run.plan is not None
    assert not run.can_resume
    assert ft.open_run(run.path).record == run.record
    assert "Finished 3 steps" in str(run)
    assert "Finished 3 steps" in run._repr_html_()
    assert ft.check(run).is_valid


def test_progress_goes_to_the_observer_and_nowhere_else(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Without a cache the step is recorded for the forecast, which is part of what must change nothing.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    heard, before = Heard(), process_state()
    ft.train(experiment(), {"parallel.threads": 2, "method.dropout": 0.1}, observer=heard)
    assert [report.step for report in heard.steps] == [0, 1, 2]
    assert heard.planned_bytes > 0
    assert heard.num_imports >= 1
    assert changed(before, process_state()) == []
    assert any(tmp_path.rglob("*.xz")), "a step was recorded"
    written = capsys.readouterr()
    assert written.out == ""
    assert "Finished" not in written.err, "only the libraries underneath speak, as they always do"


def test_a_run_that_fails_is_an_exception_with_the_run(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: int) -> None:
        raise RuntimeError("planted")

    with pytest.raises(ft.RunFailed, match="RuntimeError: planted") as caught:
        ft.train(experiment(), observer=Heard(crash))
    assert caught.value.run.status == "failed"
    assert caught.value.run.path.is_dir()


def test_ctrl_c_is_the_callers_unless_signals_are_to_be_handled(work: Path) -> None:
    handler = signal.getsignal(signal.SIGINT)

    def interrupt(num_done: int) -> None:
        assert signal.getsignal(signal.SIGINT) is handler, "the handler is the caller's"
        if num_done == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="foretune resume"):
        ft.train(experiment(), {"save.every": 1}, observer=Heard(interrupt))


def test_a_signal_ends_the_run_after_its_step_if_asked_for_and_it_resumes(work: Path) -> None:
    def stop(num_done: int) -> None:
        if num_done == 1:
            signal.raise_signal(signal.SIGTERM)

    stopped = ft.train(experiment(), stop_on_signals=True, observer=Heard(stop))
    assert stopped.status == "interrupted"
    assert stopped.can_resume
    resumed = ft.resume(stopped)
    assert resumed.status == "finished"
    assert resumed.path == stopped.path
    with pytest.raises(ft.UserError, match="has finished"):
        ft.resume(resumed)


def test_mistakes_are_reported_at_once(work: Path) -> None:
    with pytest.raises(ft.UserError) as caught:
        ft.train(experiment(stepz=3), {"method.rank": -1})
    assert "stepz" in str(caught.value)
    assert "method.rank" in str(caught.value)


def test_quality_export_and_samples(run: ft.Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = process_state()
    (evaluation,) = ft.evaluate(run, prompts=[PROMPT], seeds=1, steps=2, metrics=["loss"], device="cpu")
    assert {score.metric for score in evaluation.scores} == {"held-out loss"}
    exported = ft.export(run, "adapter")
    assert exported.proof.holds
    assert (exported.path / "pytorch_lora_weights.safetensors").is_file()
    picture = ft.sample("tiny-flux", prompts=[PROMPT], adapters=["adapter"], output="s.png", steps=2, device="cpu")
    assert picture.columns[0].startswith("base")
    assert picture.path.stat().st_size > 1000
    assert changed(before, process_state()) == []
    assert capsys.readouterr().out == ""


def test_profile(work: Path) -> None:
    before = process_state()
    found = ft.profile(experiment(), {"validate.prompts": []}, steps=2)
    assert found.trace.is_file()
    assert found.diagnoses
    assert str(found).endswith(".")
    assert ft.profile(found.run).digest == found.digest, "a run that has a trace is read"
    assert changed(before, process_state()) == []


def test_bench_and_its_comparison(work: Path) -> None:
    measured = ft.bench(experiment(), steps=3, repeat=1, synthetic=True)
    assert measured.series.step_s.num_runs == 1
    assert json.loads((measured.path / "bench.json").read_text())["name"] == "notebook"
    inference = ft.bench_inference("tiny-flux", steps=2, repeat=1, images=0, size=32)
    assert inference.pass_s.value is not None


def test_two_experiments_in_turns(work: Path) -> None:
    other = {**experiment(), "method": {"kind": "lora", "rank": 8}}
    found = ft.measure_and_compare(experiment(), other, steps=2, repeat=1, synthetic=True)
    assert found.compared.quantities[0].comparison.quantity == "step time"
    assert found.a != found.b


@pytest.mark.slow
def test_doctor_looks_at_one_group(work: Path) -> None:
    before, heard = process_state(), Heard()
    examined = ft.doctor(["training"], observer=heard)
    assert examined.findings
    assert examined.is_ready
    assert ("No GPU found" in examined.accelerators) == (not torch.cuda.is_available())
    assert changed(before, process_state()) == []
