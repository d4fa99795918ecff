"""Writes the figures of docs/step-times.md from the record of speeds: `python -m tests.docs.speed_page`."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from foretune.planner.timing.constants import SpeedRecord, speed_record
from tests.docs.backtest_page import percent

PAGE = Path(__file__).parents[2] / "docs" / "step-times.md"
_PART = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
NUM_WORST = 10

CAUSES: dict[str, tuple[str, str]] = {
    "GT0003": (
        "SD3-medium, full, L4",
        (
            "predicted twice as fast. An L4 has 72 W and slows down under load; the only row of this device, and it is "
            "published as the time of an epoch"
        ),
    ),
    "GT0446 GT0447 GT0438": (
        "SD3.5-medium, float8-dynamic, activation offload",
        "the traffic over the bus is not as well hidden as assumed; which buffers are pinned is not known",
    ),
    "GT0415 GT0451 GT0423 GT0459": (
        "SD3.5-medium, activation offload, L40S",
        "the opposite: some of the traffic is hidden behind computation",
    ),
    "GT0249": (
        "HiDream-I1, float8-dynamic, H100",
        "experts are chosen by data-dependent reads, for which the host waits; they are not in the model",
    ),
    "GT0248": (
        "HiDream-I1, SDNQ, L40S",
        "not found. The H100 with the same host work is published as 21 % slower; both are predicted alike",
    ),
    "GT0386 GT0388 GT0389": (
        "Qwen-Image, SDNQ",
        "int8 products of a Triton kernel, whose speed is known from an RTX 4090 alone",
    ),
    "GT0404": (
        "Stable Diffusion 1.5, SDNQ, H100",
        "not found",
    ),
    "GT0320 GT0322 GT0324 GT0325 GT0326 GT0327": (
        "Lumina-Image-2.0, LoRA, not quantised",
        "not found. All are predicted too slow, those of the H100 by more",
    ),
}
"""Why the worst rows are off, if known."""


def written(page: str, record: SpeedRecord) -> str:
    """The page with its parts filled in."""
    return _PART.sub(lambda found: f"{found[1]}{_PARTS[found[2]](record)}\n{found[3]}", page)


def _speeds(record: SpeedRecord) -> str:
    speed = record.speed
    day = f"{record.date.day} {record.date:%B %Y}"
    baseline = {name.removeprefix("baseline_"): value for name, value in speed.items() if name.startswith("baseline_")}
    lines = [
        f"**{day}**: {speed['num_rows']} rows, rank correlation {speed['rank_correlation']:.3f}.",
        "",
        "| | rows | median error | p90 error |",
        "|---|---|---|---|",
        _line("**model left out**", speed),
        _line("device left out", speed["device_left_out"]),
        _line("a roofline of six constants, model left out", baseline),
        _line("where the device bounds the step", speed["bound_by_device"]),
        _line("the roofline, there", speed["baseline_bound_by_device"]),
        _line("ratio with to without checkpointing", speed["checkpointing_ratios"]),
        _line("ratio quantised to bf16", speed["quantisation_ratios"]),
        *(_line(name, some) for name, some in speed["by_base"].items()),
        *(_line(name, some) for name, some in speed["by_model"].items()),
        *(_line(name, some) for name, some in speed["by_device"].items()),
        "",
        (
            f"Fitted to all rows: a product takes {speed['constants']['products']:.2f} times its time in a short "
            f"burst, the host {speed['constants']['host']:.2f} times 6 µs for an operator that a module issues."
        ),
    ]
    return "\n".join(lines)


def _line(name: str, some: Mapping[str, Any]) -> str:
    return f"| {name} | {some['num_rows']} | {percent(some['median_abs_error'])} | {percent(some['p90_abs_error'])} |"


def worst(record: SpeedRecord) -> list[str]:
    return sorted(record.ratio_by_row, key=lambda name: -abs(record.ratio_by_row[name] - 1))[:NUM_WORST]


def _worst(record: SpeedRecord) -> str:
    lines = ["| row | error | cause |", "|---|---|---|"]
    for name in worst(record):
        what, cause = _cause(name)
        lines.append(f"| {name} {what} | {percent(record.ratio_by_row[name] - 1, is_signed=True)} | {cause} |")
    return "\n".join(lines)


def _cause(name: str) -> tuple[str, str]:
    return next((cause for names, cause in CAUSES.items() if name in names.split()), ("", "not found"))


def unexplained(record: SpeedRecord) -> Iterator[str]:
    """Rows among the worst that the page does not explain."""
    yield from (name for name in worst(record) if not _cause(name)[0])


_PARTS: dict[str, Callable[[SpeedRecord], str]] = {"speeds": _speeds, "worst": _worst}


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), speed_record()), encoding="utf-8")
