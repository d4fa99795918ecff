"""The headline of a plan says what was chosen, and nothing that was not."""

import pytest

from foretune.planner.asking import PlanRequest, asked_of
from foretune.reports.question_text import _plain_words, question_text

PLAIN = "LoRA rank 16, bf16, gradient checkpointing on all blocks"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("", PLAIN),
        ("method.kind=dora method.rank=8", "DoRA rank 8, bf16, gradient checkpointing on all blocks"),
        ("method.kind=oft", "OFT, block size 32, bf16, gradient checkpointing on all blocks"),
        ("method.kind=lokr", "LoKr rank 16, bf16, gradient checkpointing on all blocks"),
        (
            "method.kind=full train.weight_dtype=bf16 optimizer.compensation=kahan",
            "full fine-tuning, bf16, bf16 trained weights, Kahan summation, gradient checkpointing on all blocks",
        ),
        (
            "quantize.denoiser=nf4 quantize.text_encoders=int8 optimizer.kind=adamw8bit",
            "LoRA rank 16, bf16, nf4 base, int8 text encoders, adamw8bit, gradient checkpointing on all blocks",
        ),
        (
            "quantize.denoiser=float8-training",
            "LoRA rank 16, bf16, float8 matmuls, gradient checkpointing on all blocks",
        ),
        ("levers.gradient_checkpointing=0", "LoRA rank 16, bf16, gradient checkpointing off"),
        ("levers.gradient_checkpointing=0.5", "LoRA rank 16, bf16, gradient checkpointing on 50 % of the blocks"),
        ("levers.checkpoint_stride=4", "LoRA rank 16, bf16, gradient checkpointing on one block in every 4"),
        (
            "levers.gradient_checkpointing=0.5 levers.checkpoint_segment=3",
            "LoRA rank 16, bf16, gradient checkpointing on 50 % of the segments of 3 blocks",
        ),
        (
            "levers.checkpoint_parts=feed_forward",
            "LoRA rank 16, bf16, gradient checkpointing on all blocks (feed-forward part)",
        ),
        (
            "levers.activation_offload=true levers.block_swap=1 levers.compile=regional levers.attention=flash",
            f"{PLAIN}, activation offload, block swap (1 block), compiled blocks, flash attention",
        ),
        ("levers.optimizer_offload=true", f"{PLAIN}, optimizer on the host"),
        (
            "levers.activation_offload=true levers.activation_offload_parts=attention",
            f"{PLAIN}, activation offload (attention)",
        ),
        ("levers.cache_text=false levers.cache_latents=false", PLAIN),
    ],
)
def test_choices_in_words(overrides: str, expected: str) -> None:
    asked = asked_of(PlanRequest(target="flux.1-dev", overrides=tuple(overrides.split())))
    assert question_text(asked) == f"{expected}, gradient accumulation 4"


def test_one_batch_a_step_is_not_accumulation() -> None:
    asked = asked_of(PlanRequest(target="flux.1-dev", overrides=("train.gradient_accumulation=1",)))
    assert question_text(asked) == PLAIN


def test_a_lever_without_words_of_its_own_is_called_by_its_key() -> None:
    assert _plain_words("channels_last", True) == "channels last"
    assert _plain_words("prefetched_blocks", 2) == "prefetched blocks 2"
