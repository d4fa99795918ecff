"""The plot of a search: time against money, both logarithmic, so that equal ratios are equal distances."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from foretune.core.units import duration_text, usd_text
from foretune.reports.device_lines import text_width_px
from foretune.reports.markup import Markup, tag
from foretune.reports.search_words import device_text

if TYPE_CHECKING:
    from foretune.planner.search.searching import Answer, Choice

NUM_COLOURS = 7
"""Devices with their own colour; the style sheet has as many."""
_TIMES_S = (10, 30, *(60 * m for m in (1, 2, 5, 10, 20, 30)), *(3600 * h for h in (1, 2, 4, 8, 16)),
            *(86400 * d for d in (1, 2, 4, 8, 16, 32, 64, 128)))  # fmt: skip
_DIGITS = (1, 2, 5)
_ROOM = 1.15
_MOST_TIMES_AS_LONG = 4.0
"""The plot ends at this many times the longest time, or highest price, of what is named in it."""


# From a point: to the right and down in pixels, and which end of the text is there.
_LEFT_FIRST = ((-12, 0, "end"), (-9, 15, "end"), (-9, 30, "end"), (-9, -14, "end"), (0, 26, "middle"), (12, 0, "start"),
               (9, 15, "start"), (9, -14, "start"), (0, -20, "middle"))  # fmt: skip
_RIGHT_FIRST = ((12, 0, "start"), (9, 15, "start"), (0, 26, "middle"), (-9, 15, "end"), (-9, 30, "end"),
                (-12, 0, "end"), (9, -14, "start"), (0, -20, "middle"), (-9, -14, "end"))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlotFrame:
    """Sizes of a drawing in its own pixels."""

    name: str
    width_px: float
    height_px: float
    left_px: float
    font_px: float
    tick_px: float
    """Least distance of ticks of the time axis."""
    names_all: bool
    """Whether points on the front have labels; the recommendation and the runner-up always do."""


WIDE = PlotFrame(name="wide", width_px=980, height_px=560, left_px=64, font_px=13, tick_px=84, names_all=True)
NARROW = PlotFrame(name="narrow", width_px=360, height_px=400, left_px=44, font_px=12, tick_px=66, names_all=False)


@dataclass(frozen=True, kw_only=True)
class SearchChart:
    """What is drawn."""

    answer: "Answer"
    colours: Mapping[str, int]
    """By device; the others are grey."""

    @property
    def named(self) -> tuple["Choice", ...]:
        """The choices with a price that are drawn as points of their own, the most important first."""
        answer = self.answer
        found = [answer.best, *([answer.runner_up] if answer.runner_up else []), *answer.front]
        return tuple({id(choice): choice for choice in found if choice.usd}.values())

    @property
    def is_drawable(self) -> bool:
        return bool(self.answer.best.usd)


def chart_of_search(answer: "Answer") -> SearchChart:
    """Gives a colour to the devices of the recommendation, the runner-up and the front, in this order."""
    found = [answer.best, *([answer.runner_up] if answer.runner_up else []), *answer.front]
    devices = list(dict.fromkeys(choice.plan.device for choice in found))
    return SearchChart(answer=answer, colours={name: number for number, name in enumerate(devices[:NUM_COLOURS])})


def draw_search(chart: SearchChart, frame: PlotFrame, key: str) -> Markup:
    """The SVG; `key` makes its ids unique on the page."""
    return _Drawing(chart, frame).svg(f"{key}-{frame.name}")


@dataclass(frozen=True)
class _LogScale:
    low: float
    high: float
    from_px: float
    to_px: float

    def px(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.from_px + share * (self.to_px - self.from_px)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass
class _Labels:
    """Places texts beside points so that none covers another, or a point."""

    right_px: float
    boxes: list[tuple[float, float, float, float]] = field(default_factory=list)

    def place(
        self, x: float, y: float, text: str, font_px: float, left_px: float, *, right_first: bool = False
    ) -> tuple[float, float, str] | None:
        """Returns where the text begins or ends; None if there is no room. Nothing is below and left of the front."""
        width, height = text_width_px(text, font_px), font_px * 1.25
        for dx, dy, anchor in _RIGHT_FIRST if right_first else _LEFT_FIRST:
            x0 = x + dx - {"start": 0.0, "end": width, "middle": width / 2}[anchor]
            box = (x0, y + dy - height / 2, x0 + width, y + dy + height / 2)
            if box[0] < left_px or box[2] > self.right_px or any(_overlap(box, other) for other in self.boxes):
                continue
            self.boxes.append(box)
            return x + dx, y + dy + font_px * 0.36, anchor
        return None

    def block(self, x: float, y: float, radius: float) -> None:
        self.boxes.append((x - radius, y - radius, x + radius, y + radius))


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


class _Drawing:
    def __init__(self, chart: SearchChart, frame: PlotFrame) -> None:
        self.chart, self.frame = chart, frame
        limits = chart.answer.limits
        times = [choice.total_s for choice in chart.named] + [s for s in (limits.deadline_s,) if s]
        prices = [choice.usd for choice in chart.named if choice.usd] + [usd for usd in (limits.budget_usd,) if usd]
        bands = list(self._band_ends())
        times, prices = times + [s for s, _ in bands], prices + [usd for _, usd in bands]
        cloud = chart.answer.cloud
        self.top_px, self.bottom_px = frame.font_px * 2.2, frame.height_px - frame.font_px * 3.6
        self.right_px = frame.width_px - 8
        self.x = _LogScale(*_span(times, [one.total_s for one in cloud]), frame.left_px, self.right_px)
        self.y = _LogScale(*_span(prices, [one.usd for one in cloud]), self.bottom_px, self.top_px)
        self.labels = _Labels(self.right_px)

    def svg(self, key: str) -> Markup:
        frame = self.frame
        # Labels of the most important points are placed first, and drawn last.
        for choice in self.chart.named:
            self.labels.block(*self._at(choice), 6)
        limits = list(self._limits())
        points = [self._point(choice) for choice in self.chart.named]
        return tag(
            "svg",
            tag("title", "Time and price of the searched configurations", id=f"{key}-title"),
            tag("desc", self._description(), id=f"{key}-desc"),
            self._axes(),
            tag("g", self._cloud(), class_="cloud"),
            tag("g", limits),
            self._front(),
            tag("g", self._bands()),
            tag("g", (point for point, _ in reversed(points))),
            tag("g", (label for _, label in points)),
            class_=f"chart {frame.name}",
            viewBox=f"0 0 {frame.width_px:g} {frame.height_px:g}",
            role="img",
            aria_labelledby=f"{key}-title {key}-desc",
            font_size=frame.font_px,
        )

    def num_outside(self) -> int:
        return sum(not self._holds(one.total_s, one.usd) for one in self.chart.answer.cloud)

    def _holds(self, total_s: float, usd: float) -> bool:
        return self.x.holds(total_s) and self.y.holds(usd)

    def _at(self, choice: "Choice") -> tuple[float, float]:
        assert choice.usd, "only choices with a price are drawn"
        return self.x.px(choice.total_s), self.y.px(choice.usd)

    def _colour(self, device: str) -> str:
        number = self.chart.colours.get(device)
        return "other" if number is None else f"d{number}"

    def _axes(self) -> Markup:
        frame, drawn = self.frame, []
        for value, x_px in _apart([(s, self.x.px(s)) for s in _TIMES_S if self.x.holds(s)], frame.tick_px):
            y_px = self.bottom_px + frame.font_px * 1.4
            drawn.append(tag("line", class_="grid", x1=x_px, x2=x_px, y1=self.top_px, y2=self.bottom_px))
            drawn.append(tag("text", _time_text(value), class_="tick", x=x_px, y=y_px, text_anchor="middle"))
        prices = [digit * 10.0**power for power in range(-3, 7) for digit in _DIGITS]
        for value, y_px in _apart([(usd, self.y.px(usd)) for usd in prices if self.y.holds(usd)], 30):
            y_text_px = y_px + frame.font_px * 0.36
            drawn.append(tag("line", class_="grid", x1=frame.left_px, x2=self.right_px, y1=y_px, y2=y_px))
            text = f"${value:,.2f}" if value < 1 else f"${value:,.0f}"
            drawn.append(tag("text", text, class_="tick", x=frame.left_px - 8, y=y_text_px, text_anchor="end"))
        y_px = frame.height_px - frame.font_px * 0.5
        drawn.append(tag("text", "Time of the whole job →", class_="axis", x=self.right_px, y=y_px, text_anchor="end"))
        drawn.append(tag("text", "↑ Price of the whole job", class_="axis", x=0, y=frame.font_px))
        return tag("g", drawn)

    def _cloud(self) -> Iterator[Markup]:
        """One path for each colour: a dot for each pair of whole pixels."""
        dots: dict[str, set[tuple[int, int]]] = {}
        for one in self.chart.answer.cloud:
            if self._holds(one.total_s, one.usd):
                pixel = round(self.x.px(one.total_s)), round(self.y.px(one.usd))
                dots.setdefault(self._colour(one.device), set()).add(pixel)
        for colour in sorted(dots, key=lambda name: name != "other"):
            path = "".join(f"M{x} {y}h0" for x, y in sorted(dots[colour]))
            yield tag("path", class_=f"dots {colour}", d=path)

    def _limits(self) -> Iterator[Markup]:
        limits = self.chart.answer.limits
        if limits.deadline_s is not None and self.x.holds(limits.deadline_s):
            x_px = self.x.px(limits.deadline_s)
            beyond_px = self.right_px - x_px
            yield tag("rect", class_="beyond", x=x_px, y=self.top_px, width=beyond_px, height=self._height_px)
            yield tag("line", class_="limit", x1=x_px, x2=x_px, y1=self.top_px, y2=self.bottom_px)
            yield from self._limit_name(f"deadline {duration_text(limits.deadline_s)}", x_px, self.top_px + 12)
        if limits.budget_usd is not None and self.y.holds(limits.budget_usd):
            y_px, left_px = self.y.px(limits.budget_usd), self.frame.left_px
            width_px = self.right_px - left_px
            yield tag("rect", class_="beyond", x=left_px, y=self.top_px, width=width_px, height=y_px - self.top_px)
            yield tag("line", class_="limit", x1=left_px, x2=self.right_px, y1=y_px, y2=y_px)
            yield from self._limit_name(f"budget {usd_text(limits.budget_usd)}", left_px + 4, y_px - 10)

    @property
    def _height_px(self) -> float:
        return self.bottom_px - self.top_px

    def _limit_name(self, text: str, x_px: float, y_px: float) -> Iterator[Markup]:
        placed = self.labels.place(x_px, y_px, text, self.frame.font_px, self.frame.left_px)
        if placed is not None:
            x_px, y_px, anchor = placed
            yield tag("text", text, class_="limit-name", x=x_px, y=y_px, text_anchor=anchor)

    def _front(self) -> Markup:
        """Steps: what a given time costs at least."""
        points = [self._at(choice) for choice in self.chart.answer.front if choice.usd]
        if len(points) < 2:  # noqa: PLR2004
            return Markup("")
        path = f"M{points[0][0]:.1f} {points[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in points[1:])
        return tag("path", class_="front", d=path)

    def _bands(self) -> Iterator[Markup]:
        ends = list(self._band_ends())
        for choice, low, high in zip(self._banded, ends[::2], ends[1::2], strict=True):
            yield tag(
                "line", class_=f"error {self._colour(choice.plan.device)}",
                x1=self.x.px(low[0]), y1=self.y.px(low[1]), x2=self.x.px(high[0]), y2=self.y.px(high[1]),
            )  # fmt: skip

    @property
    def _banded(self) -> tuple["Choice", ...]:
        answer = self.chart.answer
        return tuple(choice for choice in self.chart.named if choice in (answer.best, answer.runner_up))

    def _band_ends(self) -> Iterator[tuple[float, float]]:
        """The error of the time: price and time are wrong by the same factor, so the band is a diagonal."""
        for choice in self._banded:
            cost, usd = choice.plan.cost, choice.usd
            assert cost is not None, "only choices with a price are drawn"
            assert usd is not None, "only choices with a price are drawn"
            for end_s in (cost.low_s, cost.high_s):
                share = end_s / cost.total_s
                yield choice.total_s * share, usd * share

    def _point(self, choice: "Choice") -> tuple[Markup, Markup]:
        answer, frame = self.chart.answer, self.frame
        x_px, y_px = self._at(choice)
        outcome = f"{duration_text(choice.total_s)}, {usd_text(choice.usd or 0)}"
        kind = "best" if choice is answer.best else "runner-up" if choice is answer.runner_up else "on-front"
        radius = {"best": 8, "runner-up": 6.5}.get(kind, 4.5)
        hover = tag("title", f"{device_text(choice)}: {outcome}")
        point = tag("circle", hover, class_=f"{kind} {self._colour(choice.plan.device)}", cx=x_px, cy=y_px, r=radius)
        names = {"best": "Recommended: ", "runner-up": "Runner-up: "}
        if kind == "on-front" and not frame.names_all:
            return point, Markup("")
        full = f"{names.get(kind, '')}{device_text(choice)}"
        texts = [f"{full}, {outcome}", full] if kind != "on-front" else [full]
        for text in texts:
            placed = self.labels.place(x_px, y_px, text, frame.font_px, frame.left_px, right_first=kind == "runner-up")
            if placed is not None:
                x, y, anchor = placed
                return point, tag("text", text, class_=f"name {kind}", x=x, y=y, text_anchor=anchor)
        return point, Markup("")

    def _description(self) -> str:
        named = "; ".join(
            f"{device_text(choice)} {duration_text(choice.total_s)} for {usd_text(choice.usd or 0)}"
            for choice in self.chart.named
        )
        return f"The recommendation, the runner-up, and what is faster for more money: {named}."


def num_outside(chart: SearchChart) -> int:
    """Configurations beyond the edges of the wide drawing."""
    return _Drawing(chart, WIDE).num_outside()


def _span(named: Sequence[float], cloud: Sequence[float]) -> tuple[float, float]:
    """Returns the ends of an axis: all that is named, and what of the cloud is not far from it."""
    low, high = min(named) / _ROOM, max(named) * _ROOM
    near = [value for value in cloud if low / _ROOM <= value <= high * _MOST_TIMES_AS_LONG]
    return min([low, *near]), max([high * _ROOM, *near])


def _apart(ticks: Iterable[tuple[float, float]], least_px: float) -> Iterator[tuple[float, float]]:
    last_px = -math.inf
    for value, px in sorted(ticks, key=lambda tick: tick[1]):
        if px - last_px >= least_px:
            last_px = px
            yield value, px


def _time_text(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
