"""A run from its experiment to its record, for every family and method."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from foretune.catalog import TRAINABLE
from foretune.core.errors import Refused, UserError
from foretune.core.values import RunRecord
from foretune.record.run_directory import RunDirectory
from foretune.training import train as train_module
from foretune.training.session import status_of
from foretune.training.train import PreparationFailed, train
from tests.training.short_runs import METHODS, PROMPT, Recording, events_of, losses_of, short_asked, short_run

TinyPipeline = Callable[..., Path]

WITH_FLOW = [name for name, facts in TRAINABLE.items() if facts.is_flow_matching]
WITH_TEXT = [name for name, facts in TRAINABLE.items() if facts.has_text]


def files_of(run: RunDirectory) -> set[str]:
    return {path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file()}


def check_experiment_file(run: RunDirectory, family: str, method: str) -> None:
    content = yaml.safe_load((run.path / "experiment.yaml").read_text())
    assert list(content) == ["asked", "resolved", "effective"]
    asked, resolved, effective = content.values()
    assert asked["train"] == {"steps": 3, "batch_size": 2, "precision": "fp32"}
    # Nothing silent: what was left out stands there as what it became.
    assert resolved["train"]["max_grad_norm"] == 1.0
    assert resolved["objective"]["timestep_density"] is None
    assert effective["family"] == family
    assert effective["objective"]["kind"] == ("FlowMatching" if family in WITH_FLOW else "Epsilon")
    assert effective["num_steps"] == 3
    assert effective["samples_per_step"] == 2
    assert effective["num_train_samples"] == 16
    assert effective["num_held_out_samples"] == 3
    assert min(effective["size_px"]) == 32
    assert ("num_frames" in effective) == TRAINABLE[family].is_video
    assert effective["model_revision"] is None
    assert ("adapter" in effective) == (method == "lora")
    if method == "lora":
        assert effective["adapter"] == {"targets": ["to_q", "to_k", "to_v", "to_out.0"], "alpha": 10}


def check_events(run: RunDirectory) -> None:
    events = events_of(run)
    # Sensors are read by the clock, not by the step.
    kinds = [event["kind"] for event in events if event["kind"] != "telemetry"]
    # The last checkpoint is on the disk before the last validation begins.
    steps = ["step", "step", "step"]
    assert kinds == ["started", "validated", "paused", *steps, "saved", "paused", "validated", "paused", "ended"]
    assert [event["step"] for event in events_of(run, "step")] == [0, 1, 2]
    for event in events_of(run, "step"):
        known = {"time_s", "kind", "step", "loss", "grad_norm", "lr", "step_s", "phases_s"}
        assert set(event) - {"memory_bytes"} == known
        assert sum(event["phases_s"].values()) == pytest.approx(event["step_s"], abs=2e-6)
        assert event["loss"] > 0
        assert event["grad_norm"] > 0
        assert event["lr"] == 1e-3
        assert event["step_s"] > 0
    assert [event["step"] for event in events_of(run, "validated")] == [0, 3]
    assert events_of(run, "ended")[0]["status"] == "finished"
    times_s = [event["time_s"] for event in events]
    assert times_s == sorted(times_s)


def check_record(run: RunDirectory, record: RunRecord) -> None:
    assert run.read_record() == record
    assert record.run_id == run.path.name
    assert record.outcome.status == "finished"
    assert record.outcome.steps_done == 3
    losses = losses_of(run)
    assert (record.measured.first_loss, record.measured.last_loss) == (losses[0], losses[-1])
    held_out = [(event["step"], event["held_out_loss"]) for event in events_of(run, "validated")]
    assert list(record.measured.held_out_losses) == held_out
    assert record.measured.num_step_times == 3
    assert record.measured.peak_device_bytes is None
    assert (record.measured.peak_host_bytes or 0) > 50 * 2**20
    assert json.loads((run.path / "environment.json").read_text()) == record.environment


@pytest.mark.takes_turns
@pytest.mark.parametrize("family", TRAINABLE)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_from_its_experiment_to_its_record(
    family: str, method: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    observer = Recording()
    trained = short_run(tiny_pipeline(family), tmp_path, method, observer, validate={"prompts": [PROMPT, "two"]})
    run = trained.run
    suffixes = (".png", ".webp") if TRAINABLE[family].is_video else (".png",)
    assert files_of(run) == {
        "experiment.yaml",
        "environment.json",
        "events.jsonl",
        "record.json",
        "run.lock",
        *(f"samples/step-00000000{step}-{index}{suffix}" for step in (0, 3) for index in (0, 1) for suffix in suffixes),
        *(f"checkpoints/step-000000003/{name}" for name in ("manifest.json", "state.json")),
        *(f"checkpoints/step-000000003/{name}.safetensors" for name in ("weights", "optimizer")),
    }
    check_experiment_file(run, family, method)
    check_events(run)
    check_record(run, trained.record)
    assert trained.num_changed_tensors == trained.num_trained_tensors > 0
    assert trained.base_unchanged is (None if method == "full" else True)
    weights = load_file(run.checkpoints / "step-000000003" / "weights.safetensors")
    assert len(weights) == trained.num_trained_tensors
    assert sum(w.numel() for w in weights.values()) == trained.record.num_trainable_params
    assert [report.step for report in observer.of("stepped")] == [0, 1, 2]
    assert {(report.num_steps, report.samples_per_step) for report in observer.of("stepped")} == {(3, 2)}
    assert observer.heard[-1] == ("ended", None)


def test_every_checkpoint_comes_before_the_validation_of_its_step(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = short_run(
        tiny_pipeline("flux"),
        tmp_path,
        train={"steps": 4},
        validate={"every": 2},
        save={"every": 2, "keep": 1},
    )
    order = [(event["kind"], event["step"]) for event in events_of(trained.run, "saved", "validated")]
    assert order == [("validated", 0), ("saved", 2), ("validated", 2), ("saved", 4), ("validated", 4)]
    assert [path.name for path in trained.run.checkpoints.iterdir()] == ["step-000000004"]


@pytest.mark.parametrize("family", WITH_TEXT)
def test_encoding_at_each_step_gives_the_same_losses(family: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    found = []
    for cached in (True, False):
        levers = {"cache_latents": cached, "cache_text": cached}
        data = {"cache_dir": str(tmp_path / f"cache-{cached}"), "flip": 0.5, "caption_dropout": 0.3}
        trained = short_run(tiny_pipeline(family), tmp_path, levers=levers, data=data, validate={"prompts": [PROMPT]})
        held_out = [loss for _, loss in trained.record.measured.held_out_losses]
        found.append(losses_of(trained.run) + held_out)
        assert any((tmp_path / f"cache-{cached}").rglob("*.safetensors")) is cached
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_warnings_are_said_and_kept(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    observer = Recording()
    trained = short_run(tiny_pipeline("flux", "schnell"), tmp_path, observer=observer, train={"steps": 1})
    (warning,) = observer.of("warning")
    assert "the base is distilled" in warning
    assert trained.record.warnings == (warning,)


def test_epochs_become_steps(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = short_run(tiny_pipeline("ddpm"), tmp_path, train={"steps": None, "epochs": 2, "batch_size": 5})
    # 16 samples to train on: 4 steps of 5 an epoch, the last one filled up.
    assert trained.record.outcome.steps_done == 8


def test_what_the_user_can_mend_is_said_before_anything_is_made(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    with pytest.raises(Refused, match=r"Nearest: data\.resolution=32"):
        short_run(tiny_pipeline("flux"), tmp_path, data={"resolution": 30})
    assert not (tmp_path / "runs").exists()


def test_a_crash_while_preparing_has_a_record(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*args: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")

    monkeypatch.setattr(train_module, "prepare", crash)
    with pytest.raises(PreparationFailed, match=r"Out of memory before the first step: .*20 GiB") as failed:
        short_run(tiny_pipeline("flux"), tmp_path)
    assert failed.value.exit_code == 1
    record = RunDirectory.open(tmp_path / "runs" / "short" / "latest").read_record()
    assert record is not None
    assert record.outcome.status == "out of memory"
    assert record.num_params is None


def test_running_out_of_memory_is_distinguished() -> None:
    assert status_of(torch.OutOfMemoryError("x")) == "out of memory"
    assert status_of(MemoryError()) == "out of memory"
    assert status_of(RuntimeError("MPS backend out of memory (MPS allocated: 17.93 GiB)")) == "out of memory"
    assert status_of(torch.AcceleratorError("CUDA error: out of memory")) == "out of memory"
    assert status_of(RuntimeError("shapes do not match")) == "failed"
    with pytest.raises(RuntimeError) as real:
        torch.empty(2**50)
    assert status_of(real.value) == "out of memory"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_other_precisions(precision: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """Sampling in validation too: the base is frozen in the compute type, the autoencoder is not."""
    trained = short_run(tiny_pipeline("sd3"), tmp_path, train={"precision": precision}, validate={"prompts": [PROMPT]})
    assert trained.record.outcome.status == "finished"
    assert trained.record.warnings == ()
    assert trained.base_unchanged


def test_a_pixel_model_is_sampled_in_bf16(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = short_run(
        tiny_pipeline("ddpm"), tmp_path, train={"precision": "bf16", "steps": 1}, validate={"prompts": ["one"]}
    )
    assert trained.record.warnings == ()
    assert len(list(trained.run.samples.iterdir())) == 2


def test_model_of_an_unknown_kind_is_refused(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    asked = short_asked(tiny_pipeline("flux"), tmp_path)
    (tmp_path / "model_index.json").write_text('{"_class_name": "Other"}')
    changed: Any = asked.model.__class__(**{**vars(asked.model), "folder": tmp_path})
    with pytest.raises(UserError, match="cannot be trained yet"):
        train(type(asked)(**{**vars(asked), "model": changed}), tmp_path / "runs", Recording())
