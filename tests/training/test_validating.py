"""Looking at the model changes nothing of it, and the held-out loss is a mean over samples."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL

from foretune.core.interrupts import StopRequest
from foretune.record.run_directory import RunDirectory
from foretune.step.training_step import TrainingStep
from foretune.step.weights import checksums
from foretune.training.ranks import Ranks
from foretune.training.validating import Validator, mean_loss, validator_for
from tests.step.small_steps import CPU, made_batch, small_step, split_batch
from tests.training.short_runs import PROMPT, Recording, losses_of, short_prepared, short_run
from tests.waiting import HANG_S

TinyPipeline = Callable[..., Path]


def prepared_validator(folder: Path, work: Path, **sections: Any) -> Validator:
    prepared = short_prepared(folder, work, **sections)
    return validator_for(prepared, RunDirectory.create(work / "runs", "short").samples, StopRequest())


def test_mean_over_samples_not_over_batches(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"))
    batch = made_batch(small.family, 5)
    with torch.no_grad():
        one_by_one = [float(small.step.loss(single)) for single in split_batch(batch, 1)]
    expected = sum(one_by_one) / 5
    assert mean_loss(small.step, split_batch(batch, 2), CPU) == pytest.approx(expected, rel=1e-5)
    assert mean_loss(small.step, [batch], CPU) == pytest.approx(expected, rel=1e-5)


def test_it_is_the_same_number_each_time(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    validator = prepared_validator(tiny_pipeline("sd3"), tmp_path)
    assert validator.held_out_loss() == validator.held_out_loss()


def test_dropout_is_off_while_looking_and_on_again_afterwards(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    method = {"kind": "lora", "rank": 4, "dropout": 0.9}
    validator = prepared_validator(tiny_pipeline("flux"), tmp_path, method=method)
    with torch.no_grad():
        for parameter in validator.step.trained.values():
            parameter.fill_(0.05)
    assert validator.step.denoiser.training
    torch.manual_seed(0)
    first = validator.held_out_loss()
    torch.manual_seed(1)
    assert validator.held_out_loss() == first
    assert validator.step.denoiser.training


def test_the_average_is_looked_at_and_the_weights_come_back(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    validator = prepared_validator(tiny_pipeline("flux"), tmp_path, train={"ema": {"decay": 0.9}})
    step = validator.step
    assert step.ema is not None
    plain = validator.held_out_loss()
    with torch.no_grad():
        for average in step.ema.average.values():
            average.add_(0.1)
    before, storages = checksums(step.trained), [p.data_ptr() for p in step.trained.values()]
    averaged = validator.held_out_loss()
    assert averaged != plain
    assert checksums(step.trained) == before
    assert [p.data_ptr() for p in step.trained.values()] == storages
    # By hand: the average copied into the weights gives the same loss.
    with torch.no_grad():
        for name, parameter in step.trained.items():
            parameter.copy_(step.ema.average[name])
    assert averaged == validator.held_out_loss()


def test_schedule_free_is_looked_at_by_its_average(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    validator = prepared_validator(tiny_pipeline("flux"), tmp_path, optimizer={"kind": "schedule-free"})
    step = validator.step
    for index in range(3):
        step(index, 1e-2, [made_batch(validator.family, 1, seed=index)], 1)
    before = checksums(step.trained)
    averaged = validator.held_out_loss()
    assert checksums(step.trained) == before
    with torch.no_grad():
        for name, average in step.shown_weights().items():
            step.trained[name].copy_(average)
    assert checksums(step.trained) != before
    step.optimizer.state.clear()
    assert validator.held_out_loss() == averaged


def test_an_average_on_the_host_is_looked_at_where_the_weights_are(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    found: list[float | None] = []
    for levers in ({}, {"ema_offload": True}):
        validator = prepared_validator(
            tiny_pipeline("flux"), tmp_path / str(len(found)), train={"ema": {"decay": 0.5}}, levers=levers
        )
        validator.step(0, 1e-2, [made_batch(validator.family, 1)], 1)
        found.append(validator.held_out_loss())
    assert found[0] is not None
    assert found[0] == found[1]


def test_hooks_on_gradients_are_still_called_after_a_validation(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """DDP sends gradients from hooks on the accumulators, which torch discards where a weight changes its dtype."""
    validator = prepared_validator(
        tiny_pipeline("flux"),
        tmp_path,
        method="full",
        train={"weight_dtype": "bf16", "precision": "bf16", "ema": {}},
        levers={"optimizer_offload": True},
    )
    step = validator.step
    called: list[str] = []
    kept = []
    for name, weight in step.trained.items():
        accumulator: Any = weight.expand_as(weight).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        accumulator.register_hook(lambda *_, name=name: called.append(name))
        kept.append(accumulator)
    before = checksums(step.trained)
    assert step.shown_weights().keys() == step.trained.keys()
    assert {average.dtype for average in step.shown_weights().values()} == {torch.float32}
    assert validator.held_out_loss() is not None
    assert checksums(step.trained) == before
    step(0, 1e-2, [made_batch(validator.family, 1)], 1)
    assert set(called) == set(step.trained)


def test_weights_come_back_when_looking_fails(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    validator = prepared_validator(tiny_pipeline("flux"), tmp_path, train={"ema": {"decay": 0.9}})
    step = validator.step
    assert step.ema is not None
    with torch.no_grad():
        for average in step.ema.average.values():
            average.add_(1.0)
    before = checksums(step.trained)

    def fail(self: TrainingStep, batch: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(TrainingStep, "loss", fail)
    with pytest.raises(RuntimeError, match="no"):
        validator.held_out_loss()
    assert checksums(step.trained) == before
    assert step.denoiser.training


@pytest.mark.parametrize("family", ["ddpm", "flux"])
def test_training_goes_the_same_way_looked_at_or_not(family: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    found = []
    for validate in ({"num_held_out": 0}, {"prompts": [PROMPT], "every": 1}):
        trained = short_run(tiny_pipeline(family), tmp_path, "full", validate=validate, train={"ema": {}})
        checkpoint = trained.run.checkpoints / "step-000000003"
        bytes_written = [(checkpoint / f"{name}.safetensors").read_bytes() for name in ("weights", "optimizer", "ema")]
        found.append((losses_of(trained.run), bytes_written))
    assert found[0] == found[1]


def test_nothing_held_out_nothing_asked(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    validator = prepared_validator(tiny_pipeline("flux"), tmp_path, validate={"num_held_out": 0})
    assert validator.held_out_loss() is None
    assert validator.samples(0) == ()
    assert list(validator.samples_dir.iterdir()) == []


def test_tiles_are_used_for_caching_and_for_samples(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images of 32 px in tiles of 16; the latents of whole images stay in the cache under a key of their own."""
    calls: list[str] = []
    for name in ("tiled_encode", "_tiled_encode", "tiled_decode"):
        if hasattr(AutoencoderKL, name):
            plain = getattr(AutoencoderKL, name)
            monkeypatch.setattr(AutoencoderKL, name, _counted(plain, name.strip("_"), calls))
    monkeypatch.setattr("foretune.models.tiling.TILE_PX", 16)
    sections: dict[str, Any] = {"train": {"steps": 1}, "validate": {"prompts": [PROMPT], "num_inference_steps": 1}}
    plain_run = short_run(tiny_pipeline("flux"), tmp_path, **sections)
    assert calls == []
    tiled_run = short_run(tiny_pipeline("flux"), tmp_path, levers={"vae_tiling": True}, **sections)
    assert {"tiled_encode", "tiled_decode"} == set(calls)
    assert losses_of(plain_run.run) != losses_of(tiled_run.run), "tiles are blended, so latents differ slightly"


def _counted(plain: Callable[..., Any], name: str, calls: list[str]) -> Callable[..., Any]:
    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        calls.append(name)
        return plain(self, *arguments, **named)

    return counted


def test_a_validation_that_runs_out_of_memory_names_the_setting(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Validator, steps_done: int) -> tuple[Path, ...]:
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(Validator, "samples", fails)
    observer = Recording(on_step=lambda _: None)
    sections: dict[str, Any] = {"train": {"steps": 1}, "validate": {"prompts": [PROMPT], "num_inference_steps": 1}}
    trained = short_run(tiny_pipeline("flux"), tmp_path, observer=observer, **sections)
    assert trained.record.outcome.status == "finished"
    assert "levers.vae_tiling=true" in observer.of("warning")[0]


class VirtualGloo:
    """Broadcasts of the first process to one other, by a clock that only the work of the first one moves.

    A process gives up where more than `timeout_s` of that clock pass during a broadcast, as those of gloo do.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s, self.now_s, self.sent = timeout_s, 0.0, Queue[tuple[float, Any]]()


@dataclass(frozen=True)
class VirtualRanks(Ranks):
    gloo: VirtualGloo = field(default_factory=lambda: VirtualGloo(0.0))
    waited: list[float] = field(default_factory=list)
    """When this process began to wait, by the clock of the one that it waits for."""

    def from_first(self, value: Any) -> Any:
        if self.is_first:
            self.gloo.sent.put((self.gloo.now_s, value))
            return value
        sent_s, received = self.gloo.sent.get(timeout=HANG_S)
        began_s = self.waited[-1] if self.waited else 0.0
        self.waited.append(sent_s)
        if sent_s - began_s > self.gloo.timeout_s:
            raise RuntimeError("[/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting for recv")
        return received


@pytest.mark.parametrize("call_s", [40.0, 70.0])
def test_others_wait_for_each_step_of_a_sample_and_not_for_all_of_it(
    call_s: float, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    """Twelve calls of the denoiser take longer than a process waits; one call does so only if it hangs."""
    asked = {"prompts": [PROMPT], "num_inference_steps": 12}
    first, other = (prepared_validator(tiny_pipeline("flux"), tmp_path, validate=asked) for _ in range(2))
    gloo, progress = VirtualGloo(60.0), list[float]()
    first = replace(first, ranks=VirtualRanks(0, 2, gloo=gloo))
    other = replace(other, ranks=VirtualRanks(1, 2, gloo=gloo), progressed=lambda: progress.append(gloo.now_s))

    def pass_time(*_: object) -> None:
        gloo.now_s += call_s

    first.step.denoiser.register_forward_hook(pass_time)

    def sample_first() -> None:
        assert len(first.samples(1)) == 1
        first.ranks.from_first("the next step")

    with ThreadPoolExecutor(1) as pool:
        sampling = pool.submit(sample_first)
        if call_s > gloo.timeout_s:
            with pytest.raises(RuntimeError, match="Timed out"):
                other.samples(1)
        else:
            assert other.samples(1) == ()
            assert other.ranks.from_first(None) == "the next step"
            assert len(progress) == 12
        sampling.result()
    assert gloo.now_s == 12 * call_s
