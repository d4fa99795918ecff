"""Runs with levers end as those without: same losses, same samples, same exports; the record says what they came to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.training.exporting import export
from foretune.training.train import Trained
from tests.training.short_runs import PROMPT, events_of, losses_of, short_run

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


@pytest.mark.usefixtures("processes_begin_at_once")
@pytest.mark.parametrize("method", ["full", "lora"])
def test_channels_last_is_exported_as_any_other(method: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    sections: dict[str, Any] = {"levers": {"channels_last": True}, "train": {"ema": {}}}
    trained = short_run(tiny_pipeline("ddpm"), tmp_path, method, validate={"num_held_out": 0}, **sections)
    assert export(trained.run, tmp_path / "exported").proof.holds
