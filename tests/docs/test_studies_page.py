"""The forecasts in docs/studies are what the commands of their pages print."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import foretune as ft
from foretune.core.units import GIB, duration_text
from foretune.core.values import Plan
from foretune.core.vocabulary import RunPhase

STUDIES = Path(__file__).parents[2] / "docs" / "studies"
PAGE = "\n".join((STUDIES / f"{name}.md").read_text(encoding="utf-8") for name in ("amd-benchmark", "sd3-small-gpu"))
COMMANDS = [
    block.replace("\\\n", " ").split()[2:]
    for block in re.findall(r"```text\n(foretune plan .*?)\n```", PAGE, re.DOTALL)
]
FULL = {"method.kind": "full", "method.rank": None, "quantize.denoiser": None}
BF16 = {"train.weight_dtype": "bf16", "optimizer.compensation": "kahan"}
METHODS: dict[str, dict[str, str | None]] = {
    "full, fp32 weights": FULL,
    "full, bf16 weights, Kahan summation": {**FULL, **BF16},
    "LoRA rank 16, int8 base": {},
    "the same without checkpointing": {"levers.gradient_checkpointing": "0"},
    "LoRA rank 16, int8 base and text encoders": {"quantize.text_encoders": "int8"},
}


def planned(command: Sequence[str], changes: dict[str, str | None], on: str) -> Plan:
    model, *words = command[: command.index("--on")]
    settings: dict[str, Any] = dict(word.split("=", 1) for word in words)
    settings |= changes
    given = [f"{key}={value}" for key, value in settings.items() if value is not None]
    (plan,) = ft.plan(model, given, on=[on], advice="none")
    return plan


def rows(begin: str) -> dict[str, list[str]]:
    table = PAGE[PAGE.index(begin) :].split("\n\n")[0]
    found = [re.split(r" *\| *", line.strip("| ")) for line in table.splitlines()[2:]]
    return {row[0]: row[1:] for row in found}


@pytest.mark.parametrize("batch", ["1", "10"])
def test_plans_of_amds_benchmark(batch: str) -> None:
    plan = planned(COMMANDS[0], {"train.batch_size": batch}, "mi300x")
    assert plan.time is not None
    forecast, published, difference = rows("| batch | plan |")[batch]
    per_device = plan.time.samples_per_s / 8
    assert f"{per_device:.2f}" == forecast
    assert f"{per_device / float(published) - 1:+.0%}".replace("%", " %") == difference
    assert f"{plan.time.samples_per_s:.1f}" in PAGE


# The others are of the same rule, and each plan takes seconds.
@pytest.mark.parametrize("method", list(METHODS)[::2])
def test_plans_of_sd3_on_a_small_gpu(method: str) -> None:
    small, large = (planned(COMMANDS[1], METHODS[method], device) for device in ("l4", "rtx-5090"))
    (step,) = [phase for phase in small.phases if phase.phase == RunPhase.STEP]
    table = rows("| method | L4: epoch |")
    found = table[method]
    for plan, cell in zip((small, large), found, strict=False):
        assert plan.cost is not None
        assert cell.startswith(duration_text(plan.cost.training_s))
        assert ("does not fit" in cell) == (plan.verdict == "does not fit")
        assert ("tight" in cell) == (plan.verdict == "tight")
    assert found[2].startswith(f"{small.process_bytes / GIB:.1f} GiB")
    assert found[3].startswith(f"{step.device_bytes / GIB:.1f} GiB")
    for cell, whole in zip(found, table["full, fp32 weights"], strict=True):
        share = re.search(r"\(-(\d+) %\)", cell)
        assert share is None or abs(1 - number(cell) / number(whole) - int(share[1]) / 100) < 0.008


def number(cell: str) -> float:
    """Seconds of `17 min 19 s`, or GiB."""
    minutes, _, rest = cell.rpartition(" min ")
    return 60 * float(minutes or 0) + float(rest.split(" ")[0])
