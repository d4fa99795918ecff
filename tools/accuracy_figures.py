"""Draws how far plans were from published figures, in docs/pictures: `python -m tools.accuracy_figures`.

Everything is read from the two records of the backtest that ship with the package. The colours have enough contrast on
a white page and on a dark one, so that a figure needs no second version.
"""

import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.catalog import measurements
from foretune.catalog.backtest import BacktestRecord, backtest_record
from foretune.planner.timing.constants import SpeedRecord, speed_record

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
_INK = "#7b7f86"
_FAINT = "#9a9ea640"
_COLOURS = ("#3d7fd9", "#d9742b", "#2c9c6a", "#b05ac2", "#c94b56", "#8a7a1f")
_MARKERS = "osD^vP"
_NARROWEST = 2
"""Of bars that have room for a number, in percent."""
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "foretune",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Dot:
    """A published row."""

    row: str
    group: str
    x: float
    error: float
    """Predicted over published, less one."""


def memory_dots(record: BacktestRecord) -> list[Dot]:
    """Each row by its published peak in GiB, grouped by the program that was measured."""
    rows = measurements()
    return [
        Dot(name, _program(rows[name].framework), (rows[name].peak_mem_bytes or 0) / 2**30, error)
        for name, error in record.error_by_row.items()
    ]


def speed_dots(record: SpeedRecord) -> list[Dot]:
    """Each row by its published samples per second, grouped by device."""
    rows = measurements()
    return [
        Dot(name, rows[name].gpu.split()[0], rows[name].samples_per_s_per_gpu or 0.0, ratio - 1)
        for name, ratio in record.ratio_by_row.items()
    ]


def _program(framework: str) -> str:
    return framework.split(maxsplit=1)[0].split("(", maxsplit=1)[0].split("+", maxsplit=1)[0]


def within(errors: Sequence[float]) -> Iterator[tuple[float, float]]:
    """The error that each share of the rows does not exceed, as a staircase."""
    for number, error in enumerate(sorted(abs(error) for error in errors), start=1):
        yield error * 100, number / len(errors) * 100


def svg(draw: Callable[[Any], None], title: str, *, height: float = 3.6) -> str:
    """One figure as text: the same bytes for the same record and the same matplotlib."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        draw(axes)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Title": title})
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"


def _errors(axes: Any, dots: Sequence[Dot], band: float, x_label: str) -> None:
    groups = sorted({dot.group for dot in dots}, key=lambda group: -sum(dot.group == group for dot in dots))
    axes.axhspan(-band * 100, band * 100, color=_FAINT, linewidth=0)
    axes.axhline(0, color=_INK, linewidth=0.8)
    for number, group in enumerate(groups):
        some = [dot for dot in dots if dot.group == group]
        axes.scatter(
            [dot.x for dot in some],
            [dot.error * 100 for dot in some],
            s=22,
            alpha=0.75,
            linewidths=0,
            color=_COLOURS[number % len(_COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            label=f"{group} ({len(some)})",
        )
    axes.set_xscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel("error of the forecast, %")
    axes.legend(frameon=False, ncols=min(4, len(groups)), loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _plain_ticks(axes: Any, ticks: Sequence[float]) -> None:
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def memory_errors(record: BacktestRecord) -> str:
    def draw(axes: Any) -> None:
        _errors(axes, memory_dots(record), record.error_band, "published peak, GiB")
        _plain_ticks(axes, (2, 5, 10, 20, 40, 60))

    return svg(draw, "Error of each forecast of a published memory peak")


def speed_errors(record: SpeedRecord) -> str:
    def draw(axes: Any) -> None:
        _errors(axes, speed_dots(record), record.p90_error, "published samples/s of one device")
        _plain_ticks(axes, (0.2, 0.5, 1, 2, 5, 10, 20))

    return svg(draw, "Error of each forecast of a published step time")


def shares(memory: BacktestRecord, speed: SpeedRecord) -> str:
    """How many rows are within an error: peaks, step times, and what a multiplication would have said."""

    def draw(axes: Any) -> None:
        for number, (name, errors) in enumerate(
            (
                ("memory", list(memory.error_by_row.values())),
                ("step time", [ratio - 1 for ratio in speed.ratio_by_row.values()]),
            )
        ):
            steps = list(within(errors))
            axes.step(*zip(*steps, strict=True), where="post", color=_COLOURS[number], linewidth=1.8, label=name)
        simple = [memory.memory["baseline_median_abs_error"] * 100, memory.memory["baseline_p90_abs_error"] * 100]
        axes.plot(
            simple, [50, 90], "D--", color=_INK, markersize=5, linewidth=1, label="memory: parameters times bytes"
        )
        for share in (50, 90):
            axes.axhline(share, color=_FAINT, linewidth=1)
        axes.set_xscale("log")
        axes.set_xlim(0.05, 120)
        axes.set_ylim(0, 101)
        _plain_ticks(axes, (0.1, 0.5, 1, 2, 5, 10, 20, 50, 100))
        axes.set_xlabel("error of at most, %")
        axes.set_ylabel("share of the rows, %")
        axes.legend(frameon=False, loc="upper left")

    return svg(draw, "Share of published rows within an error")


def verdicts(record: BacktestRecord) -> str:
    """What was said of trainings that ran, and of those that ran out of memory."""
    figures: Mapping[str, Any] = record.memory

    def draw(axes: Any) -> None:
        labels = [f"ran ({figures['num_fitting_rows']})", f"ran out of memory ({figures['num_oom_rows']})"]
        for place, key in enumerate(("fitting", "oom")):
            total = figures[f"num_{key}_rows"]
            tight, refused = figures[f"num_{key}_tight"], figures[f"num_{key}_refused"]
            left = 0.0
            counts = (("fits", total - tight - refused, 0), ("tight", tight, 5), ("does not fit", refused, 1))
            for word, count, colour in counts:
                width = count / total * 100
                axes.barh(place, width, left=left, height=0.6, color=_COLOURS[colour], label="" if place else word)
                if count:
                    inside = width > _NARROWEST
                    x = left + width / 2 if inside else left + width + 1
                    axes.text(x, place, str(count), ha="center", va="center", color="white" if inside else _INK)
                left += width
        axes.set_yticks((0, 1), labels)
        axes.invert_yaxis()
        axes.set_xlabel("share of the rows, %")
        axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))

    return svg(draw, "Verdicts on published trainings", height=2.2)


def figures() -> dict[str, str]:
    """Every figure by the name of its file."""
    memory, speed = backtest_record(), speed_record()
    return {
        "accuracy-memory.svg": memory_errors(memory),
        "accuracy-shares.svg": shares(memory, speed),
        "accuracy-step-times.svg": speed_errors(speed),
        "accuracy-verdicts.svg": verdicts(memory),
    }


def main() -> int:
    for name, text in figures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{name}: {len(text) / 1000:.0f} kB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
