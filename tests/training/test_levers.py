"""Runs with levers end as those without: same losses, same samples, same exports; the record says what they came to."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.record.run_directory import RunDirectory
from foretune.training.exporting import export
from foretune.training.train import Trained, resume
from tests.training.short_runs import PROMPT, Recording, events_of, losses_of, short_run

TinyPipeline = Callable[..., Path]

LEVERS = {"gradient_checkpointing": 1.0, "checkpoint_segment": 2, "activation_offload": True, "block_swap": 3}


def samples_of(trained: Trained) -> list[bytes]:
    return [path.read_bytes() for path in sorted(trained.run.samples.glob("*.png"))]


def test_a_run_with_levers_is_the_run_without(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """In validation and sampling too, where swapped blocks have no checkpointing around them."""
    validation = {"prompts": [PROMPT], "every": 2, "num_inference_steps": 2, "num_held_out": 2}
    runs = [
        short_run(tiny_pipeline("flux"), tmp_path / name, levers=levers, validate=validation)
        for name, levers in (("plain", {}), ("levers", LEVERS))
    ]
    plain, levered = runs
    assert losses_of(levered.run) == losses_of(plain.run)
    held_out = [[event["held_out_loss"] for event in events_of(run.run, "validated")] for run in runs]
    assert held_out[0] == held_out[1] != []
    assert samples_of(levered) == samples_of(plain) != []
    assert levered.base_unchanged
    _, _, effective = levered.run.read_experiment()
    assert effective["num_checkpointed_segments"] == 3
    assert effective["swapped_blocks"] == [1, 3, 5]
    assert effective["activation_offload"] is True


def test_a_run_with_swapped_blocks_that_is_resumed_is_the_run_without(
    tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    levers = {"gradient_checkpointing": 1.0, "block_swap": 4, "block_swap_prefetch": 2}
    model, train = tiny_pipeline("flux"), {"steps": 4, "gradient_accumulation": 2}

    def stop(done: int) -> None:
        if done == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    plain = short_run(model, tmp_path / "plain", train=train)
    stopped = short_run(model, tmp_path / "swapped", observer=Recording(stop), train=train, levers=levers)
    assert stopped.record.outcome.steps_done == 2
    resumed = resume(RunDirectory.open(stopped.run.path), Recording())
    assert resumed.record.outcome.status == "finished"
    assert losses_of(resumed.run) == losses_of(plain.run)
    assert resumed.run.read_experiment()[2]["block_swap_prefetch"] == 2


@pytest.mark.usefixtures("processes_begin_at_once")
@pytest.mark.parametrize("method", ["full", "lora"])
def test_channels_last_is_exported_as_any_other(method: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    sections: dict[str, Any] = {"levers": {"channels_last": True}, "train": {"ema": {}}}
    trained = short_run(tiny_pipeline("ddpm"), tmp_path, method, validate={"num_held_out": 0}, **sections)
    assert export(trained.run, tmp_path / "exported").proof.holds
