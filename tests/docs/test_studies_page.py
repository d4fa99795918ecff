"""The forecasts in docs/studies are what the commands of their pages print."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import foretune as ft
from foretune.core.units import GIB, duration_text
from foretune.core.values import InferencePlan, Plan
from foretune.core.vocabulary import RunPhase

STUDIES = Path(__file__).parents[2] / "docs" / "studies"
NAMES = ("amd-benchmark", "sd3-small-gpu", "flux-hardware", "inference")
PAGE = "\n".join((STUDIES / f"{name}.md").read_text(encoding="utf-8") for name in NAMES)
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


@pytest.mark.parametrize(("machine", "num_devices"), [("A100 80 GB", 1), ("four A100 80 GB", 4)])
def test_plans_of_flux_on_several_machines(machine: str, num_devices: int) -> None:
    plan = planned(COMMANDS[2], {"parallel.devices": str(num_devices)}, "a100-80gb-sxm")
    assert plan.time is not None
    assert plan.cost is not None
    assert plan.cost.usd_per_hour is not None
    speed, memory, price = rows("| machine | training |")[machine]
    rate = plan.time.samples_per_s
    low, high = (rate * plan.time.step_s / end for end in (plan.time.high_s, plan.time.low_s))
    assert speed == f"{rate:.2f} samples/s ({plain(low)} to {plain(high)})"
    assert memory.removesuffix(" each") == f"{plan.process_bytes / GIB:.1f} GiB"
    assert price == f"${num_devices * plan.cost.usd_per_hour / rate / 3.6:.2f}"
    if num_devices == 1:
        assert f"the whole job, ${plan.cost.usd:.2f} on one A100" in " ".join(PAGE.split())


def plain(value: float) -> str:
    return f"{value:.2f}" if value < 2 else f"{value:.1f}"


def test_the_plan_of_inference_at_batch_256() -> None:
    plan = inferred(COMMANDS[3], {})
    (denoising,) = [phase for phase in plan.phases if phase.phase == "denoising"]
    assert plan.worst_phase == "decoding"
    words = " ".join(PAGE.split())
    assert f"take {denoising.device_bytes / GIB:.0f} GiB while denoising" in words
    assert f"the process takes {plan.process_bytes / GIB:.0f} GiB at its peak, which is decoding" in words


@pytest.mark.parametrize(
    ("way", "changes"),
    [
        ("fp32", {"precision": "fp32"}),
        ("bf16", {}),
        ("bf16, int8 weights of the denoiser", {"quantize": "int8"}),
        ("bf16, batch 4", {"batch": 4}),
    ],
)
def test_plans_of_inference(way: str, changes: dict[str, Any]) -> None:
    plan = inferred(COMMANDS[4], changes)
    assert plan.time is not None
    memory, time = rows("| inference | peak memory |")[way]
    verdict = "" if plan.verdict == "fits" else f" ({plan.verdict})"
    assert memory == f"{plan.process_bytes / GIB:.1f} GiB{verdict}"
    assert time == duration_text(plan.time.total_s / plan.batch_size)


def inferred(command: Sequence[str], changes: dict[str, Any]) -> InferencePlan:
    model, _, *words = command
    settings: dict[str, Any] = {key[2:]: value for key, value in zip(words[::2], words[1::2], strict=True)}
    settings |= {key: int(settings[key]) for key in ("batch", "size") if key in settings}
    (plan,) = ft.plan_inference(model, **{**settings, **changes})
    return plan


def number(cell: str) -> float:
    """Seconds of `17 min 19 s`, or GiB."""
    minutes, _, rest = cell.rpartition(" min ")
    return 60 * float(minutes or 0) + float(rest.split(" ")[0])
