"""The headline of a plan says what was chosen, and nothing that was not."""

import pytest

from foretune.cli.question_text import question_text
from foretune.plan.asking import Wanted, asked_of

PLAIN = "LoRA of rank 16 in bf16, every block computed again"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("", PLAIN),
        ("method.kind=dora method.rank=8", "DoRA of rank 8 in bf16, every block computed again"),
        ("method.kind=oft", "OFT in blocks of 32 in bf16, every block computed again"),
        ("method.kind=lokr", "LoKr of rank 16 in bf16, every block computed again"),
        (
            "method.kind=full train.weights=bf16 optimizer.compensation=kahan",
            "full fine-tuning in bf16, weights in bf16, kahan updates, every block computed again",
        ),
        (
            "quantize.denoiser=nf4 quantize.text_encoders=int8 optimizer.kind=adamw8bit",
            "LoRA of rank 16 in bf16 on a base in nf4, text encoders in int8, adamw8bit, every block computed again",
        ),
        (
            "quantize.denoiser=float8-training",
            "LoRA of rank 16 in bf16, products in float8, every block computed again",
        ),
        ("levers.gradient_checkpointing=0", "LoRA of rank 16 in bf16, no block computed again"),
        ("levers.gradient_checkpointing=0.5", "LoRA of rank 16 in bf16, 0.5 of the blocks computed again"),
        ("levers.checkpoint_stride=4", "LoRA of rank 16 in bf16, a block in every 4 blocks computed again"),
        (
            "levers.gradient_checkpointing=0.5 levers.checkpoint_segment=3",
            "LoRA of rank 16 in bf16, 0.5 of the segments of 3 blocks computed again",
        ),
        (
            "levers.checkpoint_parts=feed_forward",
            "LoRA of rank 16 in bf16, the feed-forward part of every block computed again",
        ),
        (
            "levers.activation_offload=true levers.swapped_blocks=1 levers.compile=regional levers.attention=flash",
            f"{PLAIN}, activations on the host, 1 block swapped, flash attention, blocks compiled",
        ),
        ("levers.optimizer_on_host=true", f"{PLAIN}, optimizer on the host"),
    ],
)
def test_choices_in_words(overrides: str, expected: str) -> None:
    asked = asked_of(Wanted(target="flux.1-dev", overrides=tuple(overrides.split())))
    assert question_text(asked) == expected
