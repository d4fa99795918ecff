"""Small drawings of one kind: points with whiskers, lines with bands. Each is an SVG that is read out, too."""

from collections.abc import Sequence
from dataclasses import dataclass

from foretune.reports.markup import Markup, tag
from foretune.reports.scales import Scale

WIDTH_PX, HEIGHT_PX = 340, 250
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 56, 18, 24, 44
NUM_SERIES = 8
"""Colours that can be distinguished; more series share them."""


@dataclass(frozen=True)
class PlottedPoint:
    """A configuration in two measures, each (mean, low, high); without an interval the three are equal."""

    x: tuple[float, float, float]
    y: tuple[float, float, float]
    letter: str
    hover: str
    is_marked: bool
    """Whether it is on the front of all measures."""


@dataclass(frozen=True)
class Line:
    """A curve with the band that its repeats span."""

    points: tuple[tuple[float, float], ...]
    band: tuple[tuple[float, float, float], ...]
    """(x, low, high); empty where there is one repeat."""
    letter: str
    hover: str
    series: int
    has_dots: bool = False


@dataclass(frozen=True)
class Axes:
    """What the two directions show."""

    x: str
    y: str
    title: str
    description: str
    key: str
    """Makes ids unique on the page."""


def scatter(points: Sequence[PlottedPoint], front: Sequence[int], axes: Axes) -> Markup:
    """Points with whiskers; those that `front` names are joined, in that order."""
    x, y = _scales([v for p in points for v in p.x], [v for p in points for v in p.y])
    steps = [f"{x.px(points[i].x[0]):.2f},{y.px(points[i].y[0]):.2f}" for i in front]
    drawn = [tag("polyline", points=" ".join(steps), class_="front")] if len(steps) > 1 else []
    for point in points:
        at_x, at_y = x.px(point.x[0]), y.px(point.y[0])
        low_x, high_x, low_y, high_y = (scale.px(v) for scale, side in ((x, point.x), (y, point.y)) for v in side[1:])
        whiskers = [
            tag("line", class_="whisker", x1=low_x, x2=high_x, y1=at_y, y2=at_y),
            tag("line", class_="whisker", x1=at_x, x2=at_x, y1=low_y, y2=high_y),
        ]
        dot = tag("circle", cx=at_x, cy=at_y, r=5.0, class_="dot marked" if point.is_marked else "dot")
        anchor, shift = ("end", -8.0) if at_x > WIDTH_PX - 60 else ("start", 8.0)
        name = tag("text", point.letter, x=at_x + shift, y=at_y - 7, text_anchor=anchor, class_="letter")
        drawn.append(tag("g", tag("title", point.hover), whiskers, dot, name if point.letter else []))
    return _svg(axes, x, y, drawn)


def lines(found: Sequence[Line], axes: Axes) -> Markup:
    """Curves with bands; each is named at its end."""
    xs = [x for line in found for x, _ in line.points]
    ys = [y for line in found for _, y in line.points] + [v for line in found for band in line.band for v in band[1:]]
    x, y = _scales(xs, ys)
    bands, drawn, names = [], [], []
    for line in found:
        if line.band:
            upper = [f"{x.px(at):.1f},{y.px(high):.1f}" for at, _, high in line.band]
            lower = [f"{x.px(at):.1f},{y.px(low):.1f}" for at, low, _ in reversed(line.band)]
            bands.append(tag("polygon", points=" ".join(upper + lower), class_=f"spread f{line.series}"))
        path = " ".join(f"{x.px(at):.1f},{y.px(value):.1f}" for at, value in line.points)
        dots = [
            tag("circle", cx=x.px(at), cy=y.px(value), r=3.0, class_=f"f{line.series}")
            for at, value in (line.points if line.has_dots else ())
        ]
        curve = tag("polyline", points=path, class_=f"curve s{line.series}")
        drawn.append(tag("g", tag("title", line.hover), curve, dots))
        names.append((y.px(line.points[-1][1]), x.px(line.points[-1][0]), line.letter))
    return _svg(axes, x, y, [*bands, *drawn, *_end_names(names)])


def _end_names(names: Sequence[tuple[float, float, str]]) -> list[Markup]:
    """Letters at the ends of curves, pushed apart where they would lie on each other."""
    placed: list[Markup] = []
    last_px = -100.0
    for y_px, x_px, letter in sorted(names):
        last_px = max(y_px, last_px + 11)
        placed.append(tag("text", letter, x=min(x_px + 4, WIDTH_PX - 10.0), y=last_px + 4, class_="letter"))
    return placed


def _scales(xs: Sequence[float], ys: Sequence[float]) -> tuple[Scale, Scale]:
    return (
        Scale.around(xs, _LEFT_PX, WIDTH_PX - _RIGHT_PX),
        Scale.around(ys, HEIGHT_PX - _BOTTOM_PX, _TOP_PX),
    )


def _svg(axes: Axes, x: Scale, y: Scale, drawn: Sequence[Markup]) -> Markup:
    grid: list[Markup] = []
    bottom_px, right_px = HEIGHT_PX - _BOTTOM_PX, WIDTH_PX - _RIGHT_PX
    for value, text in y.ticks(5):
        at = y.px(value)
        grid.append(tag("line", class_="grid", x1=_LEFT_PX, x2=right_px, y1=at, y2=at))
        grid.append(tag("text", text, class_="tick", x=_LEFT_PX - 6, y=at + 4, text_anchor="end"))
    for value, text in x.ticks(5):
        grid.append(tag("text", text, class_="tick", x=x.px(value), y=bottom_px + 16, text_anchor="middle"))
    grid.append(tag("line", class_="rule", x1=_LEFT_PX, x2=right_px, y1=bottom_px, y2=bottom_px))
    names = [
        tag("text", axes.x, class_="axis", x=right_px, y=bottom_px + 36, text_anchor="end"),
        tag("text", axes.y, class_="axis", x=0, y=9),
    ]
    return tag(
        "svg",
        tag("title", axes.title, id=f"{axes.key}-title"),
        tag("desc", axes.description, id=f"{axes.key}-desc"),
        grid,
        drawn,
        names,
        class_="chart panel",
        viewBox=f"0 0 {WIDTH_PX} {HEIGHT_PX}",
        role="img",
        aria_labelledby=f"{axes.key}-title {axes.key}-desc",
        font_size=11,
    )
