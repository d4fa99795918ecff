"""Training works, not only runs: tiny models of random weights learn generated images, and clips that move."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from foretune.data.batch import Batch
from foretune.models.family import Conditioning
from foretune.training.preparing import Prepared
from foretune.training.validating import mean_loss
from tests.conftest import ProofSize
from tests.training.short_runs import events_of, of_model, short_prepared, short_run

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

CASES: dict[str, dict[str, Any]] = {"sdxl": {"resolution": 32}, "wan": {"resolution": "32x32"}}
LEAST_GAIN_OF_CAPTIONS = {"wan": 1.2}
"""How much larger the loss is with the caption of another sample. SDXL, which predicts noise, learns too little from
captions in so few steps.
"""


def settings(folder: Path, num_steps: int, **data: Any) -> dict[str, Any]:
    return {
        "data": {"num_samples": 200, "placement": "middle", "held_out": 0.1, **of_model(folder), **data},
        "train": {"steps": num_steps, "batch_size": 8},
        "optimizer": {"lr": 2e-3, "warmup_steps": 20},
        "validate": {"every": num_steps, "num_held_out": 20},
    }


def loss_of(prepared: Prepared, change: Callable[[Batch], Batch] = lambda batch: batch) -> float:
    return mean_loss(prepared.step, prepared.held_out, torch.device("cpu"), ready=lambda b: change(ready(prepared, b)))


def ready(prepared: Prepared, batch: Batch) -> Batch:
    return prepared.encoders.ready(batch, torch.device("cpu"))


def without_input(_: Any, __: Any, noisy: torch.Tensor, *___: Any, **____: Any) -> torch.Tensor:
    """The prediction that needs no model: the mean of the target."""
    return torch.zeros_like(noisy)


def other_captions(batch: Batch) -> Batch:
    """Each sample with the caption of its neighbour."""
    assert batch.conditioning is not None
    turned: Conditioning = {name: tensor.roll(1, dims=0) for name, tensor in batch.conditioning.items()}
    return replace(batch, conditioning=turned)


@pytest.mark.parametrize("family", CASES)
def test_a_tiny_model_learns_generated_data(
    family: str,
    tmp_path: Path,
    tiny_pipeline: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    folder = tiny_pipeline(family)
    asked = settings(folder, proof_size(1000, 200), **CASES[family])
    trained = short_run(folder, tmp_path, "full", **asked)
    first, last = (event["held_out_loss"] for event in events_of(trained.run, "validated"))
    prepared = short_prepared(folder, tmp_path, "full", **asked)
    assert loss_of(prepared) == pytest.approx(first, rel=1e-5)
    with monkeypatch.context() as patch:
        patch.setattr(type(prepared.family), "predict", without_input)
        trivial = loss_of(prepared)
    newest = max((trained.run.path / "checkpoints").iterdir())
    prepared.method.load_trained(load_file(newest / "weights.safetensors"))
    assert loss_of(prepared) == pytest.approx(last, rel=1e-4)
    others = loss_of(prepared, other_captions)
    report_figure(
        f"{family}, {asked['train']['steps']} steps: held-out loss {first:.3f} to {last:.3f}; {trivial:.3f} for the "
        f"mean of the target, {others:.3f} with the caption of another sample"
    )
    assert last < 0.8 * min(first, trivial)
    assert others > LEAST_GAIN_OF_CAPTIONS.get(family, 0.0) * last, "it learned nothing from captions"
