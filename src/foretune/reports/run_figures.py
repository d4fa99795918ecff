"""The drawings of a report: the front, the losses, where the time goes."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

from foretune.analyse.convergence import Curve, CurveKind, curves
from foretune.analyse.frontier import Placed, front_by_mean
from foretune.analyse.groups import Configuration
from foretune.analyse.run_data import RunData
from foretune.analyse.run_numbers import Measure
from foretune.analyse.run_report import RunTask
from foretune.core.units import GIB, measured_text
from foretune.core.vocabulary import TimePhase
from foretune.reports.markup import Markup, tag
from foretune.reports.panels import NUM_SERIES, Axes, Line, PlottedPoint, lines, scatter
from foretune.reports.scales import tick_step
from foretune.stats.intervals import Estimate

MOST_CURVES = 8
"""Configurations whose losses are drawn; more cannot be distinguished."""
_MOST_LETTERS = 30
_PHASE_COLOURS: Mapping[str, str] = {
    TimePhase.DATA: "c10",
    TimePhase.ENCODE: "c9",
    TimePhase.FORWARD: "c1",
    TimePhase.BACKWARD: "c0",
    TimePhase.OPTIMIZER: "c2",
    TimePhase.LOGGING: "c11",
    TimePhase.VALIDATION: "c5",
    TimePhase.SAVE: "c6",
    TimePhase.OTHER: "c13",
}
_SCALES: Mapping[str, tuple[float, str]] = {"bytes": (GIB, "GiB"), "usd": (1.0, "US dollars")}


def front_panels(task: RunTask, key: str) -> list[Markup]:
    """One panel for each pair of measures that decide: quality against what it costs, then costs against each other."""
    axes = task.axes
    pairs = [(cost, axes[0]) for cost in axes[1:]] if task.has_quality else list(pairwise(axes))
    if task.has_quality and len(axes) > 2:  # noqa: PLR2004
        pairs.append((axes[1], axes[2]))
    made = []
    for number, (across, up) in enumerate(pairs, start=1):
        known = [one for one in task.placed if _has(one, axes, across) and _has(one, axes, up)]
        if known:
            made.append(_front(known, axes, (across, up), f"{key}-front-{number}"))
    return made


def _has(one: Placed, axes: Sequence[Measure], measure: Measure) -> bool:
    return one.estimates[axes.index(measure)] is not None


def _front(
    known: Sequence[Placed],
    axes: Sequence[Measure],
    pair: tuple[Measure, Measure],
    key: str,
) -> Markup:
    across, up = pair
    columns = [[one.estimates[axes.index(measure)] for one in known] for measure in pair]
    scales = [_scale(measure, column) for measure, column in zip(pair, columns, strict=True)]
    points, described = [], []
    for number, one in enumerate(known):
        sides = [_side(column[number], scale) for column, (scale, _) in zip(columns, scales, strict=True)]
        texts = [
            f"{m.name} {measured_text(e.value, e.low, e.high, m.unit)}"
            for m, column in zip(pair, columns, strict=True)
            if (e := column[number]) is not None
        ]
        letter = one.configuration.letter
        is_marked = one.standing == "on the front"
        shown = letter if len(known) <= _MOST_LETTERS or is_marked else ""
        points.append(
            PlottedPoint(sides[0], sides[1], shown, f"{one.configuration.name}. {', '.join(texts)}", is_marked)
        )
        described.append(f"{one.configuration.name}: {', '.join(texts)}")
    front = front_by_mean([(p.x[0], p.y[0]) for p in points], (across.higher_is_better, up.higher_is_better))
    better = " and ".join(f"{'higher' if m.higher_is_better else 'lower'} {m.name}" for m in pair)
    text = f"Points with 95 % intervals; {better} is better. {'; '.join(described[:_MOST_LETTERS])}."
    return scatter(
        points,
        front,
        Axes(
            x=_axis_name(across, scales[0][1]),
            y=_axis_name(up, scales[1][1]),
            title=f"{up.name} against {across.name}",
            description=text,
            key=key,
        ),
    )


def _axis_name(measure: Measure, unit: str) -> str:
    arrow = "higher is better" if measure.higher_is_better else "lower is better"
    name = f"{measure.name}, {unit}" if unit else measure.name
    return f"{name} ({arrow})"


def _scale(measure: Measure, column: Sequence[Estimate | None]) -> tuple[float, str]:
    """One unit for all numbers of an axis."""
    if measure.unit == "s":
        largest = max((e.value or 0.0 for e in column if e is not None), default=0.0)
        return next(((by, n) for least, by, n in ((7200, 3600, "h"), (120, 60, "min")) if largest >= least), (1, "s"))
    if measure.unit == "bytes":
        largest = max((e.value or 0.0 for e in column if e is not None), default=0.0)
        return (GIB, "GiB") if largest >= GIB else (2**20, "MiB")
    return _SCALES.get(measure.unit, (1.0, measure.unit))


def _side(estimate: Estimate | None, scale: float) -> tuple[float, float, float]:
    assert estimate is not None, "points have both measures"
    assert estimate.value is not None, "a mean of runs is a number"
    low = estimate.value if estimate.low is None else estimate.low
    high = estimate.value if estimate.high is None else estimate.high
    return estimate.value / scale, low / scale, high / scale


def loss_panels(found: Sequence[Configuration], key: str) -> list[Markup]:
    """Training loss, smoothed, and held-out loss, each with the interval of its mean over seeds."""
    drawn = [one for one in found if one.finished][:MOST_CURVES]
    series = {one.key: number % NUM_SERIES for number, one in enumerate(drawn)}
    by_key = {one.key: one for one in drawn}
    kinds: dict[CurveKind, list[Line]] = {"training": [], "held-out": []}
    for curve in curves({one.key: one.finished for one in drawn}):
        line = _line(curve, by_key[curve.label], series[curve.label])
        if len(line.points) > 1:
            kinds[curve.kind].append(line)
    words = "Means over runs; bands are the 95 % interval of the mean over seeds, where there are several."
    return [
        lines(
            kinds[kind],
            Axes(
                "step", f"{kind} loss", f"{kind} loss by step".capitalize(),
                f"{words} {'; '.join(line.hover for line in kinds[kind])}.", f"{key}-{kind}",
            ),
        )
        for kind in kinds
        if kinds[kind]
    ]  # fmt: skip


def _line(curve: Curve, one: Configuration, series: int) -> Line:
    known = [point for point in curve.points if math.isfinite(point.value)]
    band = tuple(
        (float(point.step), point.low, point.high)
        for point in known
        if point.low is not None and point.high is not None
    )
    ends = f" from {known[0].value:.3g} to {known[-1].value:.3g}" if known else ""
    return Line(
        tuple((float(point.step), point.value) for point in known),
        band,
        one.letter,
        f"{one.name}{ends}",
        series,
        has_dots=curve.kind == "held-out",
    )


def phases_of(runs: Sequence[RunData]) -> dict[str, list[float]]:
    """Seconds of each run by phase, steps and pauses together."""
    totals: list[dict[str, float]] = []
    for run in runs:
        total = dict(run.pauses_s)
        for phases in run.phases_s:
            for name, seconds in phases.items():
                total[name] = total.get(name, 0.0) + seconds
        totals.append(total)
    names = dict.fromkeys(name for total in totals for name in total)
    return {name: [total.get(name, 0.0) for total in totals] for name in names}


def phase_names(found: Sequence[Configuration]) -> list[str]:
    """One order of phases for all configurations, so that bars can be held against each other: the longest first."""
    total: dict[str, float] = {}
    for one in found:
        for name, values in phases_of(one.finished).items():
            total[name] = total.get(name, 0.0) + statistics.fmean(values)
    return sorted(total, key=lambda name: (-total[name], name))


def phase_colours(names: Sequence[str]) -> dict[str, str]:
    return {name: _PHASE_COLOURS.get(name, f"c{14 + i % 2}") for i, name in enumerate(names)}


def phase_bars(found: Sequence[Configuration], key: str) -> Markup | None:
    """A bar for each configuration: mean seconds of a run, by phase."""
    rows = [(one, phases) for one in found if (phases := phases_of(one.finished))]
    if not rows:
        return None
    row_px, left_px, width_px = 26, 26, 420
    longest = max(sum(statistics.fmean(values) for values in phases.values()) for _, phases in rows) or 1.0
    ordered = phase_names(found)
    colours = phase_colours(ordered)
    drawn, described = [], []
    for number, (one, phases) in enumerate(rows):
        x_px, y_px = float(left_px), float(number * row_px)
        drawn.append(tag("text", one.letter, x=0, y=y_px + 15, class_="letter"))
        shown = {name: statistics.fmean(phases[name]) for name in ordered if name in phases}
        for name, seconds in shown.items():
            wide_px = seconds / longest * (width_px - left_px)
            hover = tag("title", f"{one.label}, {name}: {measured_text(seconds, None, None, 's')}")
            drawn.append(tag("rect", hover, x=x_px, y=y_px, width=wide_px, height=18, class_=f"part {colours[name]}"))
            x_px += wide_px
        shares = ", ".join(f"{name} {seconds / (sum(shown.values()) or 1.0):.0%}" for name, seconds in shown.items())
        described.append(f"{one.name}: {shares}")
    bottom_px = len(rows) * row_px
    step = tick_step(longest, 5)
    px_per_s = (width_px - left_px) / longest
    ticks = [
        tag(
            "text", f"{i * step:g} s", class_="tick", x=left_px + i * step * px_per_s, y=bottom_px + 12,
            text_anchor="middle" if i else "start",
        )
        for i in range(int(longest / step) + 1)
        if i * step / longest < 0.97  # noqa: PLR2004
    ]  # fmt: skip
    return tag(
        "svg",
        tag("title", "Seconds of a run by phase", id=f"{key}-phases-title"),
        tag("desc", "; ".join(described), id=f"{key}-phases-desc"),
        drawn,
        ticks,
        class_="chart bars",
        viewBox=f"0 0 {width_px} {bottom_px + 18}",
        role="img",
        aria_labelledby=f"{key}-phases-title {key}-phases-desc",
        font_size=12,
    )
