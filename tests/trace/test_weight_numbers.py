"""Bytes of each trained weight, its gradient and its states, by the numbers that were asked for."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.choices.experiment import Experiment
from foretune.models.locating import open_family
from foretune.trace.recorder import Allocation
from foretune.trace.tracing import StepSizes, trace_step

SIZES = StepSizes(batch_size=2, height_px=64, width_px=64, num_text_tokens=16)


@pytest.mark.parametrize(
    ("weights", "compensation", "expected"),
    [("fp32", "none", (4, 4, 8)), ("bf16", "none", (2, 2, 4)), ("bf16", "kahan", (2, 2, 6))],
)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_bytes_of_a_trained_weight(
    method: str, weights: str, compensation: str, expected: tuple[int, int, int], tiny_pipeline: Callable[..., Path]
) -> None:
    asked = Experiment.model_validate(
        {
            "model": "tiny",
            "method": {"kind": method},
            "data": {"kind": "shapes"},
            "train": {"steps": 1, "weight_dtype": weights},
            "optimizer": {"compensation": compensation},
        }
    )
    traced = trace_step(asked, open_family(tiny_pipeline("flux")), SIZES, "cuda")
    num_bytes: Counter[str] = Counter()
    for event in traced.recording.events:
        if isinstance(event, Allocation) and event.shape != ():  # the count of steps is one number
            num_bytes[traced.categories.get(event.number, "other")] += event.num_bytes
    found = tuple(num_bytes[name] for name in ("trained weights", "gradients", "optimizer state"))
    assert found == tuple(size * traced.num_trained_params for size in expected)
