"""Writes the speeds of docs/scale.md: `python -m tests.docs.scale_page`."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from foretune import catalog
from foretune.backtests.questions import LeftOut
from foretune.backtests.scale import (
    FORECASTS,
    ScaleForecasts,
    ScaleQuestion,
    ScaleResult,
    is_of_scale,
    median_errors,
    scale_question,
    scale_results,
    where_the_count_grows,
)
from foretune.backtests.scale_programs import COMPOSER, FLUX_BENCHMARK, NEMO, PROGRAMS
from foretune.planner.timing.device_speed import speed_of
from foretune.planner.traces import Traces
from tests.docs.backtest_page import percent

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
_PART = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NAMES = {
    "from_nothing": "from tables and data sheets",
    "as_planned": "the same with the constants that ship, fitted to other programs on one device",
    "without_communication": "from tables and data sheets, without communication",
    "without_submitter": "one constant per program, from other submitters",
    "without_device": "one constant per program, from other devices",
    "from_fewest": "one constant, from the fewest devices published",
    "constant_efficiency": "constant efficiency from the fewest devices published",
}
_TITLES = {NEMO.name: "NeMo (MLPerf)", COMPOSER.name: "Composer", FLUX_BENCHMARK.name: "diffusers (FluxBenchmark)"}


@cache
def questions() -> tuple[ScaleQuestion | LeftOut, ...]:
    return tuple(scale_question(row) for row in catalog.measurements().values() if is_of_scale(row))


@cache
def all_results() -> tuple[ScaleResult, ...]:
    asked = [one for one in questions() if isinstance(one, ScaleQuestion)]
    return tuple(scale_results(asked, ScaleForecasts(Traces(), speed_of)))


def _rounded(error: float | None) -> str:
    return "-" if error is None else f"{round(error * 100):+d} %"


def _medians(results: Sequence[ScaleResult]) -> str:
    diffusion = [one for one in results if one.asked.program is not FLUX_BENCHMARK]
    growing = where_the_count_grows(diffusion)
    every, grown = median_errors(diffusion), median_errors(growing)
    lines = [
        "| forecast of samples/s per device | all rows: median error (rows) | rows with a smaller count published |",
        "|---|---|---|",
    ]
    for name in FORECASTS:
        cells = (f"{percent(one[name].median_abs_error)} ({one[name].num_rows})" for one in (every, grown))
        lines.append(f"| {_NAMES[name]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(results: Iterable[ScaleResult]) -> str:
    lines = [
        (
            "| row | program, device | devices | batch of each | published samples/s per device | from tables | "
            "as planned | constant from fewest | constant efficiency | of the step, waiting for communication |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in results:
        asked, train = one.asked, one.asked.step.experiment.train
        batch = asked.step.size.batch_size
        passes = f"{train.gradient_accumulation} x {batch}" if train.gradient_accumulation > 1 else f"{batch}"
        errors = (one.from_nothing, one.as_planned, one.from_fewest, one.constant_efficiency)
        what = f"{_TITLES[asked.program.name]}, {asked.device.title}"
        lines.append(
            f"| {asked.row_id} | {what} | {asked.num_devices:,} | {passes} | "
            f"{asked.published:.{2 if asked.published < 10 else 1}f} | {' | '.join(map(_rounded, errors))} | "
            f"{one.seconds.shares()['communication'] * 100:.0f} % |"
        )
    return "\n".join(lines)


def _left_out(results: Sequence[ScaleResult]) -> str:
    reasons: dict[str, list[str]] = {}
    for one in questions():
        if isinstance(one, LeftOut):
            reasons.setdefault(one.reason, []).append(one.row_id)
    return "\n".join(
        f"- {len(rows)} row{'s' if len(rows) > 1 else ''}: {reason} ({', '.join(rows)})."
        for reason, rows in reasons.items()
    )


def _flux(results: Sequence[ScaleResult]) -> str:
    """A step as a fixed part and a part for each sample, from two batch sizes."""
    one, ten = sorted(
        (each for each in results if each.asked.program is FLUX_BENCHMARK),
        key=lambda each: each.asked.step.size.batch_size,
    )
    sizes = [each.asked.step.size.batch_size for each in (one, ten)]
    lines = ["| | fixed part of a step | for each sample |", "|---|---|---|"]
    for name, steps in (
        ("published", [size / each.asked.published for size, each in zip(sizes, (one, ten), strict=True)]),
        ("from tables", [each.seconds.step_s for each in (one, ten)]),
        (
            "as planned",
            [
                size / (each.asked.published * (1 + each.as_planned))
                for size, each in zip(sizes, (one, ten), strict=True)
            ],
        ),
    ):
        per_sample_s = (steps[1] - steps[0]) / (sizes[1] - sizes[0])
        fixed_s = steps[0] - sizes[0] * per_sample_s
        lines.append(f"| {name} | {fixed_s * 1000:.0f} ms | {per_sample_s * 1000:.0f} ms |")
    sent = one.seconds.communication
    lines += [
        "",
        (
            f"Weights and gradients take {sent.total_s * 1000:.0f} ms to send; "
            f"of these, computation hides {sent.hidden_s / sent.total_s * 100:.0f} % with one sample."
        ),
    ]
    return "\n".join(lines)


def _programs(results: Sequence[ScaleResult]) -> str:
    return "\n".join(
        f"- {_TITLES[program.name]}. Read: {'; '.join(program.sources)}. Assumed: {'; '.join(program.assumptions)}."
        for program in PROGRAMS
    )


_PARTS: dict[str, Callable[[Sequence[ScaleResult]], str]] = {
    "medians": _medians,
    "rows": _rows,
    "programs": _programs,
    "left_out": _left_out,
    "flux": _flux,
}


def written(page: str, results: Sequence[ScaleResult]) -> str:
    """The page with its parts filled in."""
    return _PART.sub(lambda found: f"{found[1]}{_PARTS[found[2]](results)}\n{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), all_results()), encoding="utf-8")
