"""The bytes of every optimizer's states are known to the plan, and the traced peak of its step is the real one."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune.choices.experiment import Experiment
from foretune.core.values.step_trace import is_optimizer_state
from foretune.models.family import Family
from foretune.models.locating import open_family
from foretune.trace.recorder import Allocation
from foretune.trace.tracing import StepSizes, TracedStep, trace_step
from tests.cpu_kernels import tolerance
from tests.trace.test_truth import measured_peak_bytes, traced_peak_bytes

TinyPipeline = Callable[..., Path]

# So small that weights and states are nearly all there is: the peak is at the update, or near it.
SMALL = StepSizes(batch_size=1, height_px=32, width_px=32, num_text_tokens=16)
BF16 = {"precision": "bf16", "weight_dtype": "bf16"}
NO_CLIPPING = {"max_grad_norm": None}


def asked(method: str, **sections: Any) -> Experiment:
    train = {"steps": 2, "precision": "fp32", **sections.pop("train", {})}
    rank = {"rank": 64} if method == "lora" else {}
    return Experiment.model_validate(
        {"model": "tiny", "method": {"kind": method, **rank}, "data": {"kind": "shapes"}, "train": train, **sections}
    )


CASES: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adamw8bit": {"optimizer": {"kind": "adamw8bit"}},
    "lion": {"optimizer": {"kind": "lion"}},
    "lion8bit": {"optimizer": {"kind": "lion8bit"}},
    "adafactor": {"optimizer": {"kind": "adafactor"}},
    "prodigy": {"optimizer": {"kind": "prodigy"}},
    "schedule-free": {"optimizer": {"kind": "schedule-free"}},
    "kahan": {"train": BF16, "optimizer": {"compensation": "kahan"}},
    "stochastic": {"train": BF16, "optimizer": {"compensation": "stochastic"}},
    "adamw8bit-bf16": {"train": BF16, "optimizer": {"kind": "adamw8bit"}},
    "adafactor-in-backward": {
        "train": NO_CLIPPING,
        "optimizer": {"kind": "adafactor"},
        "levers": {"fused_backward": True},
    },
    "adamw8bit-in-backward": {
        "train": NO_CLIPPING,
        "optimizer": {"kind": "adamw8bit"},
        "levers": {"fused_backward": True},
    },
    "on-host": {"train": BF16, "levers": {"optimizer_offload": True}},
    "average-on-host": {"train": {"ema": {}}, "levers": {"ema_offload": True}},
}


@pytest.fixture(scope="module")
def family(tiny_pipeline: TinyPipeline) -> Family:
    """A block of each kind: the update knows of tensors, not of blocks."""
    return open_family(tiny_pipeline("flux")).with_depths((1, 1))


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("method", "case"), [*(("full", case) for case in CASES), ("lora", "adamw8bit"), ("lora", "on-host")]
)
def test_traced_peak_is_the_real_one(method: str, case: str, family: Family) -> None:
    experiment = asked(method, **CASES[case])
    truth = measured_peak_bytes(experiment, family, SMALL)
    most_apart = 0.002 if experiment.train.weight_dtype == "fp32" else tolerance(0.01)
    assert traced_peak_bytes(experiment, family, SMALL) == pytest.approx(truth, rel=most_apart)


def lasting(traced: TracedStep, *, on_host: bool) -> Counter[str]:
    """Bytes by category of what is on the host, or of what is not; counts of steps are single numbers."""
    num_bytes: Counter[str] = Counter()
    for event in traced.recording.events:
        if isinstance(event, Allocation) and event.shape != () and (event.number in traced.on_host) is on_host:
            category = traced.categories.get(event.number, "other")
            num_bytes["optimizer state" if is_optimizer_state(category) else category] += event.num_bytes
    return num_bytes


# Bytes of state for each trained weight, of a matrix: two bytes and two scales for each 256, and so on.
STATE_BYTES = {
    "adamw": 8.0,
    "adamw8bit": 2 + 2 * 4 / 256,
    "paged-adamw8bit": 2 + 2 * 4 / 256,
    "lion": 4.0,
    "lion8bit": 1 + 4 / 256,
    "prodigy": 16.0,
    "schedule-free": 8.0,
}

# What the bytes stand for, once for all weights.
TABLES_BYTES = 2 * 256 * 4


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("kind", STATE_BYTES)
def test_bytes_of_state_on_a_gpu(kind: str, family: Family) -> None:
    """An adapter is traced as if each of its tensors were large: at other ranks it is."""
    traced = trace_step(asked("lora", optimizer={"kind": kind}), family, SMALL, "cuda")
    found = lasting(traced, on_host=False)["optimizer state"]
    assert found == pytest.approx(STATE_BYTES[kind] * traced.num_trained_params, abs=TABLES_BYTES)


def test_bytes_of_8_bit_states_in_backward_and_on_the_host(family: Family) -> None:
    expected = STATE_BYTES["adamw8bit"]
    for lever, on_host in (("fused_backward", False), ("optimizer_offload", True)):
        experiment = asked("lora", train=NO_CLIPPING, optimizer={"kind": "adamw8bit"}, levers={lever: True})
        traced = trace_step(experiment, family, SMALL, "cuda")
        found = lasting(traced, on_host=on_host)["optimizer state"]
        per_weight = expected + (4 if on_host else 0)
        assert found == pytest.approx(per_weight * traced.num_trained_params, abs=TABLES_BYTES)


def test_adafactor_keeps_a_row_and_a_column_of_each_matrix(family: Family) -> None:
    traced = trace_step(asked("full", optimizer={"kind": "adafactor"}), family, SMALL, "cuda")
    trained = family.denoiser_on_meta(torch.float32).parameters()
    expected = sum(4 * (p.numel() if p.dim() < 2 else sum(p.numel() // side for side in p.shape[-2:])) for p in trained)
    assert lasting(traced, on_host=False)["optimizer state"] == expected


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_states_on_the_host_are_none_of_the_device(weights: str, family: Family) -> None:
    """On the host: an fp32 copy and two states; an average beside them. On the device: weights and gradients."""
    experiment = asked(
        "full",
        train={"precision": "bf16", "weight_dtype": weights, "ema": {}},
        levers={"optimizer_offload": True, "ema_offload": True},
    )
    traced = trace_step(experiment, family, SMALL, "cuda")
    here, there, size = lasting(traced, on_host=False), lasting(traced, on_host=True), traced.num_trained_params
    per_weight = 4 if weights == "fp32" else 2
    assert (here["trained weights"], here["gradients"]) == (per_weight * size, per_weight * size)
    assert (here["optimizer state"], here["moving average"]) == (0, 0)
    assert (there["optimizer state"], there["moving average"]) == (12 * size, 4 * size)
    assert there["trained weights"] == there["gradients"] == 0


def test_gradients_in_backward_go_one_by_one(family: Family) -> None:
    """With an optimizer that keeps next to nothing, what is saved is the bytes of the gradients."""
    peaks = {}
    for levers in ({}, {"fused_backward": True}):
        experiment = asked("full", train=NO_CLIPPING, optimizer={"kind": "adafactor"}, levers=levers)
        peaks[bool(levers)] = traced_peak_bytes(experiment, family, SMALL)
    num_weights = trace_step(asked("full"), family, SMALL, "cpu").num_trained_params
    assert peaks[False] - peaks[True] > 0.5 * 4 * num_weights
