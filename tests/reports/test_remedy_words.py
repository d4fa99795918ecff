"""What settings do, in words."""

import pytest

from foretune.core.values.plan import Remedy
from foretune.reports.remedy_words import effect_text


@pytest.mark.parametrize(
    ("old", "current", "value", "words"),
    [
        ("levers.swapped_blocks", "levers.block_swap", "28", "block swap, 28 blocks wait in host memory"),
        (
            "levers.optimizer_on_host",
            "levers.optimizer_offload",
            "true",
            "optimizer states and fp32 weights on the host",
        ),
        ("levers.ema_on_host", "levers.ema_offload", "true", "moving average in host memory"),
        ("train.weights", "train.weight_dtype", "bf16", "trained weights in bf16"),
    ],
)
def test_remedies_of_stored_plans_have_the_same_words(old: str, current: str, value: str, words: str) -> None:
    for key in (old, current):
        remedy = Remedy(
            kind="host memory", settings={key: value}, process_bytes=None, saves_bytes=1, extra_flops_share=0.0,
            changes_the_result=True, verdict="fits",
        )  # fmt: skip
        assert effect_text(remedy) == words
