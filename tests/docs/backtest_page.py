"""Writes the figures of docs/backtest.md from the backtest record: `python -m tests.docs.backtest_page`."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from foretune.catalog.backtest import BacktestRecord, backtest_record

PAGE = Path(__file__).parents[2] / "docs" / "backtest.md"
_PART = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

CAUSES: dict[str, tuple[str, str]] = {
    "GT0462 GT0463 GT0470 GT0471": (
        "SDXL, LoKr, checkpointed, SimpleTuner",
        (
            "not found. Without checkpointing the same rows are within 0.1 %; so is the same UNet with LoRA and "
            "checkpointing (Kolors, GT0266 and GT0267, not of grade A). The published figure is within 0.02 GiB of the "
            "UNet plus both text encoders and the VAE before the first step, but no other family shows this"
        ),
    ),
    "GT0084 GT0083": (
        "HunyuanVideo, LoRA, finetrainers",
        "not found. About 3 GiB are missing with and without cached encoders, so it is not the VAE",
    ),
    "GT0080": (
        "LTX-Video, LoRA, finetrainers",
        "the VAE encodes tiles of 512 px inside the step; temporaries of a tile are counted as for a whole image",
    ),
    "GT0338 GT0339 GT0341 GT0340": (
        "Lumina-Image-2.0, LoRA, float8-dynamic, SimpleTuner",
        "not found; the text length was counted by hand from the prompt template",
    ),
    "GT0104": (
        "CogVideoX-2b, LoRA of rank 256, cogvideox-factory",
        "not found. From rank 16 to 256 the published figure grows by 0.2 GiB, the predicted one by 1.5 GiB",
    ),
}
"""Why rows outside the band are off, if known."""


def percent(share: float | None, *, is_signed: bool = False) -> str:
    return "-" if share is None else f"{share * 100:{'+' if is_signed else ''}.1f} %"


def written(page: str, record: BacktestRecord) -> str:
    """The page with its parts filled in."""
    return _PART.sub(lambda found: f"{found[1]}{_PARTS[found[2]](record)}\n{found[3]}", page)


def _peaks(record: BacktestRecord) -> str:
    memory = record.memory
    day = f"{record.made_on.day} {record.made_on:%B %Y}"
    tools = ", ".join(f"{name} {version}" for name, version in record.made_with.items())
    lines = [
        (f"**{day}**, shipped traces, {tools}: {memory['num_rows']} of {memory['num_exact_rows']} rows."),
        (
            f"Median error {percent(memory['median_abs_error'])}, p90 {percent(memory['p90_abs_error'])}; "
            f"parameters times bytes: {percent(memory['baseline_median_abs_error'])} and "
            f"{percent(memory['baseline_p90_abs_error'])}."
        ),
        "",
        "| | rows | median error | p90 error |",
        "|---|---|---|---|",
        *(_line(f"{peak} peaks", memory[peak]) for peak in ("allocated", "reserved")),
        *(_line(base, some) for base, some in memory["by_base"].items()),
        "",
        (
            f"In {record.num_pairs_right} of {record.num_pairs} pairs of rows that differ only in quantisation or "
            "checkpointing, and by at least 1 %, the plan predicts the direction of the change."
        ),
        "",
        (
            f"The error band of plans is the largest p90 of this table: {percent(record.error_band)} of what the "
            "allocator holds."
        ),
    ]
    return "\n".join(lines)


def _line(name: str, some: dict[str, float]) -> str:
    return f"| {name} | {some['num_rows']} | {percent(some['median_abs_error'])} | {percent(some['p90_abs_error'])} |"


def _verdicts(record: BacktestRecord) -> str:
    memory = record.memory
    return "\n".join(
        [
            "| | rows | fits | tight | does not fit | share called tight |",
            "|---|---|---|---|---|---|",
            *(
                f"| {name} | {memory[f'num_{key}_rows']} | "
                f"{memory[f'num_{key}_rows'] - memory[f'num_{key}_tight'] - memory[f'num_{key}_refused']} | "
                f"{memory[f'num_{key}_tight']} | {memory[f'num_{key}_refused']} | "
                f"{percent(memory[f'{key}_tight_share'])} |"
                for name, key in (("ran out of memory", "oom"), ("ran", "fitting"))
            ),
            "",
            (
                f"Recall {percent(memory['oom_recall'])}, false refusals {percent(memory['false_refusals'])}, verdict "
                f'score {memory["verdict_skill"]:.2f} bits (always "tight": 0; all right: 0.93). '
                f"{memory['num_not_judged']} more rows have no shipped trace."
            ),
        ]
    )


def _inferred(record: BacktestRecord) -> str:
    lines = [
        (
            "| trainer | statement | suggested by | rows affected | without it, all rows: median, p90 | without it, "
            "affected rows: median |"
        ),
        "|---|---|---|---|---|---|",
    ]
    for one in record.without:
        lost = f"; {one.num_lost} cannot be planned" if one.num_lost else ""
        lines.append(
            f"| {one.program} | {one.statement} | {one.because} | {one.num_changed}{lost} | "
            f"{percent(one.median_abs_error)}, {percent(one.p90_abs_error)} ({one.num_rows} rows) | "
            f"{percent(one.changed_median_abs_error)} |"
        )
    return "\n".join(lines)


def _worst(record: BacktestRecord) -> str:
    lines = ["| rows | error | cause |", "|---|---|---|"]
    for names, (what, cause) in CAUSES.items():
        errors = sorted({percent(record.error_by_row[name], is_signed=True): None for name in names.split()})
        lines.append(f"| {', '.join(names.split())} {what} | {', '.join(errors)} | {cause} |")
    return "\n".join(lines)


_PARTS: dict[str, Callable[[BacktestRecord], str]] = {
    "peaks": _peaks,
    "verdicts": _verdicts,
    "inferred": _inferred,
    "worst": _worst,
}


def unexplained(record: BacktestRecord) -> Iterator[str]:
    """Rows outside the band that the page does not explain."""
    named = {name for names in CAUSES for name in names.split()}
    yield from (
        name for name, error in record.error_by_row.items() if abs(error) > record.error_band and name not in named
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), backtest_record()), encoding="utf-8")
