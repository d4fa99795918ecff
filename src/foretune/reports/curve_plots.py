"""Loss curves of several configurations in one picture, so that curves that lie on each other can be distinguished."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.reports.figures import COLOURS, GRID, INK, plain

_PANEL_INCHES = (6.2, 3.6)
_STYLES: tuple[tuple[Any, float], ...] = (
    ("-", 2.8),
    ((0, (7, 5)), 1.8),
    ((0, (2, 3)), 1.8),
    ((0, (6, 1.6, 1.2, 1.6)), 1.4),
)
"""Dashes and widths: of curves that lie on each other, the wide one below is seen between the dashes above it."""
_LABEL_GAP, _LABEL_X, _LEADER_X = 0.062, 1.09, 1.075
"""Between names, and where they begin, in widths and heights of a panel."""


@dataclass(frozen=True)
class _Look:
    colour: str
    dashes: Any
    width: float
    order: int


def draw_curves(study: Mapping[str, Any], title: str) -> Any:
    """Draws a panel for each kind of loss, with a line for each configuration.

    `study` is a study.json, or the summary.json of a sweep: both have `curves` and `convergence`.
    """
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(curve["kind"] for curve in study["curves"]))
    num_panels = max(1, len(kinds))
    figure = Figure(figsize=(_PANEL_INCHES[0] * num_panels, _PANEL_INCHES[1] + 0.5), layout="constrained")
    figure.suptitle(title, color=INK, fontsize=11, fontweight="bold")
    panels = list(figure.subplots(1, num_panels, squeeze=False).flat)
    settled = {one["label"]: one["settled_at_step"] for one in study["convergence"]}
    looks = _looks(study["curves"])
    for panel, kind in zip(panels, kinds, strict=False):
        curves = [curve for curve in study["curves"] if curve["kind"] == kind]
        for curve in curves:
            _draw_curve(panel, curve, looks[curve["label"]], settled.get(curve["label"]))
        panel.set_xlabel("optimizer steps")
        panel.set_ylabel(f"{kind} loss")
        # Over the panel, where it meets no line.
        panel.set_title(_caption(curves), fontsize=8, color=INK, loc="left")
        plain(panel)
        _name_ends(panel, curves, looks)
    _key(figure, study["curves"], has_settled=any(step is not None for step in settled.values()))
    return figure


def _looks(curves: Sequence[Mapping[str, Any]]) -> dict[str, _Look]:
    """Colours in the order of the configurations. Dashes in the order of the last values, so that neighbours differ."""
    labels = list(dict.fromkeys(curve["label"] for curve in curves))
    ends = {curve["label"]: curve["points"][-1]["value"] for curve in curves if curve["points"]}
    by_end = sorted(labels, key=lambda label: ends.get(label, 0.0))
    found = {}
    for number, label in enumerate(labels):
        place = by_end.index(label)
        dashes, width = _STYLES[place % len(_STYLES)]
        found[label] = _Look(COLOURS[number % len(COLOURS)], dashes, width, place % len(_STYLES))
    return found


def _caption(curves: Sequence[Mapping[str, Any]]) -> str:
    reach, width = (
        max(_number(curve, key) for curve in curves) for key in ("num_smoothed_steps", "num_steps_per_point")
    )
    if reach == 1:
        return "not smoothed"
    raw = "the loss of each step" if width == 1 else f"means of {width} steps"
    return f"exponential moving average over {reach} steps; faint: {raw}"


def _number(curve: Mapping[str, Any], key: str) -> int:
    """1 in files of earlier releases, which did not smooth."""
    return int(curve.get(key, 1))


def _draw_curve(panel: Any, curve: Mapping[str, Any], look: _Look, settled_at: int | None) -> None:
    points = curve["points"]
    steps = [point["step"] for point in points]
    if all(point.get("raw") is not None for point in points):
        panel.plot(steps, [point["raw"] for point in points], color=look.colour, linewidth=0.7, alpha=0.28, zorder=1)
    panel.plot(
        steps, [point["value"] for point in points], color=look.colour, linewidth=look.width, linestyle=look.dashes,
        zorder=3 + 0.1 * look.order,
    )  # fmt: skip
    if all(point["low"] is not None for point in points):
        lows, highs = ([point[end] for point in points] for end in ("low", "high"))
        panel.fill_between(steps, lows, highs, color=look.colour, alpha=0.14, linewidth=0, zorder=2)
    if settled_at is not None:
        panel.axvline(settled_at, color=look.colour, linewidth=1, linestyle=":")


def _name_ends(panel: Any, curves: Sequence[Mapping[str, Any]], looks: Mapping[str, _Look]) -> None:
    """The name of each curve at its end, below each other, with a line in the curve's colour and dashes to it."""
    low, high = panel.get_ylim()
    panel.set_ylim(low, high)
    last = max((curve["points"][-1]["step"] for curve in curves if curve["points"]), default=1)
    panel.set_xlim(right=last)
    ended = sorted((curve for curve in curves if curve["points"]), key=lambda curve: curve["points"][-1]["value"])
    ends = [(curve["points"][-1]["value"] - low) / (high - low) for curve in ended]
    for curve, end, place in zip(ended, ends, _spread(ends), strict=True):
        look = looks[curve["label"]]
        panel.plot(
            [1.0, _LEADER_X], [end, place], color=look.colour, linewidth=look.width * 0.7, linestyle=look.dashes,
            transform=panel.transAxes, clip_on=False,
        )  # fmt: skip
        panel.text(
            _LABEL_X, place, curve["label"], color=look.colour, fontsize=8, va="center", transform=panel.transAxes
        )


def _spread(places: Sequence[float]) -> list[float]:
    """Moves places, which are in order, apart until names fit between them; their middle stays."""
    gap = min(_LABEL_GAP, 1 / max(1, len(places) - 1))
    found = list(places)
    for number in range(1, len(found)):
        found[number] = max(found[number], found[number - 1] + gap)
    over = max(0.0, found[-1] - 1.0) if found else 0.0
    found = [place - over for place in found]
    for number in range(len(found) - 2, -1, -1):
        found[number] = min(found[number], found[number + 1] - gap)
    return found


def _key(figure: Any, curves: Sequence[Mapping[str, Any]], *, has_settled: bool) -> None:
    """The meaning of lines and bands, below the panels."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    reach = max((_number(curve, "num_smoothed_steps") for curve in curves), default=1)
    if reach > 1:
        handles += [
            Line2D([], [], color=INK, linewidth=1.8, label=f"smoothed over {reach} steps (training loss)"),
            Line2D([], [], color=INK, linewidth=0.7, alpha=0.4, label="not smoothed"),
        ]
    if any(point["low"] is not None for curve in curves for point in curve["points"]):
        handles.append(Patch(color=GRID, label="95 % interval of the mean over seeds"))
    if has_settled:
        handles.append(Line2D([], [], color=INK, linewidth=1, linestyle=":", label="more steps no longer showed"))
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
