"""A step's state as a checkpoint, and back into a fresh step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune.step.weights import checksums
from foretune.training.checkpoint_files import Checkpoint, DamagedCheckpoint
from foretune.training.state import check, collect, components, restore, shown_weights
from tests.step.small_steps import SmallStep, made_batch, small_step

TinyPipeline = Callable[..., Path]

LORA = {"kind": "lora", "rank": 2}
BF16 = {"precision": "bf16", "weight_dtype": "bf16"}
LIBRARIES = ["adamw8bit", "lion", "lion8bit", "adafactor", "prodigy", "schedule-free"]
CASES: list[dict[str, Any]] = [
    {"method": "full"},
    {"method": {"kind": "lora", "rank": 2}, "train": {"ema": {"decay": 0.5}}},
    {"method": {"kind": "lora", "rank": 2}, "train": {"precision": "fp16"}},
    {"method": "full", "train": {"precision": "bf16", "weight_dtype": "bf16"}},
    {
        "method": {"kind": "lora", "rank": 2},
        "train": {"precision": "bf16", "weight_dtype": "bf16", "ema": {"decay": 0.5}},
        "optimizer": {"compensation": "kahan"},
    },
    {"method": "full", "train": BF16, "optimizer": {"compensation": "stochastic"}},
    *({"method": "full", "optimizer": {"kind": kind}} for kind in LIBRARIES),
    {"method": LORA, "train": {"precision": "fp16"}, "optimizer": {"kind": "prodigy"}},
    *(
        {
            "method": "full",
            "train": {"max_grad_norm": None},
            "optimizer": {"kind": k},
            "levers": {"fused_backward": True},
        }
        for k in ("adamw8bit", "schedule-free")
    ),
    {"method": "full", "train": BF16, "levers": {"optimizer_offload": True}},
    {
        "method": LORA,
        "train": {"ema": {"decay": 0.5}},
        "optimizer": {"kind": "prodigy"},
        "levers": {"optimizer_offload": True, "ema_offload": True},
    },
]


def advance(small: SmallStep, first: int, num: int) -> list[float]:
    batches = [made_batch(small.family, 2, seed=index) for index in range(first, first + num)]
    return [float(small.step(first + i, 1e-2, [batch], 1).loss) for i, batch in enumerate(batches)]


def copied(checkpoint: Checkpoint) -> Checkpoint:
    """As it would come from the disk: without a tie to the live tensors."""
    tensors = {part: {k: t.detach().clone() for k, t in all_.items()} for part, all_ in checkpoint.tensors.items()}
    return Checkpoint(checkpoint.step, tensors, checkpoint.scalars)


@pytest.mark.parametrize("case", CASES)
def test_a_fresh_step_goes_on_as_the_old_one(case: dict[str, Any], tiny_pipeline: TinyPipeline) -> None:
    first = small_step(tiny_pipeline("flux"), **case)
    advance(first, 0, 2)
    checkpoint = copied(collect(first.step, 2))
    assert set(checkpoint.tensors) == set(components(first.step))
    second = small_step(tiny_pipeline("flux"), **case)
    check(second.step, checkpoint)
    restore(second.step, checkpoint)
    assert checksums(second.step.trained) == checksums(first.step.trained)
    assert second.step.scaler.state_dict() == first.step.scaler.state_dict()
    assert advance(second, 2, 2) == advance(first, 2, 2)
    assert checksums(second.step.trained) == checksums(first.step.trained)
    if first.step.ema is not None and second.step.ema is not None:
        for name, average in first.step.ema.average.items():
            assert torch.equal(average, second.step.ema.average[name])


def test_before_the_first_step(tiny_pipeline: TinyPipeline) -> None:
    """Nothing is in the optimizer yet, and that is not a fault."""
    first, second = (small_step(tiny_pipeline("flux")) for _ in range(2))
    checkpoint = copied(collect(first.step, 0))
    check(second.step, checkpoint)
    restore(second.step, checkpoint)
    assert advance(second, 0, 1) == advance(first, 0, 1)


def test_a_checkpoint_without_the_shift_or_with_other_numbers_is_refused(tiny_pipeline: TinyPipeline) -> None:
    folder, train = tiny_pipeline("flux"), {"precision": "bf16", "weight_dtype": "bf16"}
    kahan = small_step(folder, train=train, optimizer={"compensation": "kahan"})
    plain = small_step(folder, train=train)
    fp32 = small_step(folder, train={"precision": "bf16"})
    for one in (kahan, plain, fp32):
        advance(one, 0, 1)
    for saved, reader, fault in ((plain, kahan, "misses .*/shift"), (kahan, plain, "should not hold .*/shift")):
        with pytest.raises(DamagedCheckpoint, match=fault):
            check(reader.step, copied(collect(saved.step, 1)))
    with pytest.raises(DamagedCheckpoint, match="bfloat16"):
        check(fp32.step, copied(collect(plain.step, 1)))


def test_a_checkpoint_of_another_model_is_refused(tiny_pipeline: TinyPipeline) -> None:
    lora = small_step(tiny_pipeline("flux"), {"kind": "lora", "rank": 2})
    advance(lora, 0, 1)
    checkpoint = copied(collect(lora.step, 1))
    for method in ("full", {"kind": "lora", "rank": 3}):
        with pytest.raises(DamagedCheckpoint):
            check(small_step(tiny_pipeline("flux"), method).step, checkpoint)


def test_numbers_that_belong_to_all_weights_are_missed_too(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"), LORA, optimizer={"kind": "prodigy"})
    advance(small, 0, 1)
    whole = copied(collect(small.step, 1))
    kept_once = sorted(name for name in whole.tensors["optimizer"] if name.startswith("*/"))
    assert kept_once == ["*/d", "*/d_max", "*/d_numerator", "*/step"]
    for name in kept_once:
        optimizer = {key: tensor for key, tensor in whole.tensors["optimizer"].items() if key != name}
        damaged = Checkpoint(1, {**whole.tensors, "optimizer": optimizer}, whole.scalars)
        with pytest.raises(DamagedCheckpoint, match="misses"):
            check(small_step(tiny_pipeline("flux"), LORA, optimizer={"kind": "prodigy"}).step, damaged)


def test_an_optimizer_takes_no_other_ones_state(tiny_pipeline: TinyPipeline) -> None:
    adamw, eight_bit, factored = (
        small_step(tiny_pipeline("flux"), LORA, optimizer={"kind": kind})
        for kind in ("adamw", "adamw8bit", "adafactor")
    )
    for saved, reader in ((adamw, eight_bit), (eight_bit, adamw), (factored, adamw)):
        advance(saved, 0, 1)
        with pytest.raises(DamagedCheckpoint):
            check(reader.step, copied(collect(saved.step, 1)))


def test_shown_weights_of_a_checkpoint_are_those_of_the_step(tiny_pipeline: TinyPipeline) -> None:
    """What is exported is what was validated: the moving average, that of schedule-free, and the copy on the host."""
    moving = small_step(tiny_pipeline("flux"), train={"ema": {}})
    averaged = small_step(tiny_pipeline("flux"), optimizer={"kind": "schedule-free"})
    on_host = small_step(tiny_pipeline("flux"), train=BF16, levers={"optimizer_offload": True})
    for small in (moving, averaged, on_host):
        advance(small, 0, 3)
        checkpoint = copied(collect(small.step, 3))
        shown = shown_weights(small.experiment.optimizer, checkpoint)
        expected = small.step.shown_weights()
        for name, weight in small.step.trained.items():
            assert shown[name].dtype == torch.float32
            assert torch.equal(shown[name].to(weight.dtype), expected.get(name, weight))
    for small in (moving, averaged):
        assert small.step.shown_weights().keys() == small.step.trained.keys()
    assert on_host.step.shown_weights() == {}
