"""TensorBoard files hold what happened, however the run ended."""

import builtins
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from foretune.core.errors import MissingExtra
from foretune.record.run_directory import RunDirectory
from foretune.training.trackers.tensorboard_files import TensorBoard
from tests.training.short_runs import PROMPT, Recording, events_of, losses_of, short_run

TinyPipeline = Callable[..., Path]


def read(run: RunDirectory) -> Any:
    accumulator = EventAccumulator(str(run.path / "tensorboard"))
    accumulator.Reload()
    return accumulator


def scalars(accumulator: Any, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_a_finished_run(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = short_run(tiny_pipeline("flux"), tmp_path, track=["tensorboard"], validate={"prompts": [PROMPT]})
    found = read(trained.run)
    # Steps are counted as done, so that a checkpoint and a point of the curve have the same number.
    losses = scalars(found, "train/loss")
    assert [step for step, _ in losses] == [1, 2, 3]
    assert [value for _, value in losses] == pytest.approx(losses_of(trained.run), rel=1e-6)
    norms = [event["grad_norm"] for event in events_of(trained.run, "step")]
    assert [value for _, value in scalars(found, "train/grad_norm")] == pytest.approx(norms, rel=1e-6)
    assert [value for _, value in scalars(found, "train/lr")] == pytest.approx([1e-3] * 3)
    held_out = scalars(found, "validate/held_out_loss")
    assert [step for step, _ in held_out] == [0, 3]
    expected = [loss for _, loss in trained.record.measured.held_out_losses]
    assert [value for _, value in held_out] == pytest.approx(expected, rel=1e-6)
    assert [(image.step, image.width, image.height) for image in found.Images("samples/0")] == [
        (0, 32, 32),
        (3, 32, 32),
    ]


def test_an_interrupted_run_loses_nothing(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    def stop(done: int) -> None:
        if done == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    trained = short_run(
        tiny_pipeline("flux"), tmp_path, observer=Recording(stop), track=["tensorboard"], train={"steps": 50}
    )
    assert trained.record.outcome.status == "interrupted"
    assert [step for step, _ in scalars(read(trained.run), "train/loss")] == [1, 2]


def test_at_the_end_nothing_is_left_in_its_queue(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    tracker = TensorBoard(tmp_path)
    tracker.ended()
    assert tracker._writer.all_writers is None, "it is closed, which waits for its thread"


def test_without_the_package_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if "tensorboard" in name:
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install 'foretune\[tensorboard\]'"):
        TensorBoard(tmp_path)
