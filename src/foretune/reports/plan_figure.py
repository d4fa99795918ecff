"""The chart of a plan: a stacked bar for each phase, and a line for what each device can give."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from foretune.core.units import GIB, bytes_text
from foretune.core.values.plan import PhaseMemory
from foretune.reports.device_lines import (
    DeviceLine,
    Label,
    group_lines,
    label_text,
    place_labels,
    text_width_px,
)
from foretune.reports.markup import Markup, tag
from foretune.reports.scales import tick_step

_FEW_DEVICES = 6
_SMALL_FONT = 0.86


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What is drawn, in bytes."""

    phases: tuple[PhaseMemory, ...]
    worst_phase: str
    lines: tuple[DeviceLine, ...]
    process_likely: tuple[int, int]
    """Of the device with the least and with the most: what driver and libraries take differs."""
    process_band: tuple[int, int]
    classes: Mapping[str, str]
    """Colour class by part."""

    @property
    def need_bytes(self) -> int:
        return max(self.process_band[1], *(phase.device_bytes for phase in self.phases))

    def edge_bytes(self, frame: "Frame") -> float:
        """Devices with more than this are named at the edge: drawn to scale they would leave the bars no room.

        The smallest device is always on the scale.
        """
        num_needs = frame.num_needs_for_few if len(self.lines) <= _FEW_DEVICES else 2
        return max(num_needs * self.need_bytes, min(line.usable_bytes for line in self.lines))

    def beyond(self, frame: "Frame") -> tuple[DeviceLine, ...]:
        edge_bytes = self.edge_bytes(frame)
        return tuple(line for line in self.lines if line.usable_bytes > edge_bytes)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Sizes of a drawing in its own pixels."""

    name: str
    width_px: float
    left_px: float
    """Where bars begin. Where that is 0, names of phases stand above them."""
    font_px: float
    bar_px: float
    row_px: float
    most_label_characters: int
    num_needs_for_few: float
    """How many times the need the scale may reach to where devices are few."""

    @property
    def name_above_px(self) -> float:
        return 0 if self.left_px else self.font_px * 1.45


WIDE = Frame(
    name="wide", width_px=980, left_px=132, font_px=13, bar_px=26, row_px=40, most_label_characters=46,
    num_needs_for_few=4,
)  # fmt: skip
NARROW = Frame(
    name="narrow", width_px=360, left_px=0, font_px=12, bar_px=20, row_px=50, most_label_characters=25,
    num_needs_for_few=2,
)  # fmt: skip


def draw(chart: Chart, frame: Frame, key: str) -> Markup:
    """The SVG; `key` makes its ids unique on the page."""
    return _Drawing(chart, frame).svg(f"{key}-{frame.name}")


class _Drawing:
    def __init__(self, chart: Chart, frame: Frame) -> None:
        self.chart, self.frame = chart, frame
        self.label_font_px = frame.font_px * _SMALL_FONT
        self.beyond = chart.beyond(frame)
        self.groups = group_lines([line for line in chart.lines if line not in self.beyond])
        self.texts = [label_text(group, frame.most_label_characters) for group in self.groups]
        self.px_per_byte = self._scale()
        self.labels = place_labels(self.groups, self.texts, self.x_of, self.label_font_px)
        self.label_row_px = self.label_font_px * 1.4
        num_rows = max((label.row for label in self.labels), default=-1) + 1 + bool(self.beyond)
        self.top_px = num_rows * self.label_row_px + 10
        self.bars_px = (len(chart.phases) + 1) * frame.row_px
        self.bottom_px = self.top_px + self.bars_px

    def x_of(self, num_bytes: float) -> float:
        return self.frame.left_px + num_bytes * self.px_per_byte

    def svg(self, key: str) -> Markup:
        frame = self.frame
        height_px = self.bottom_px + frame.font_px * 2.6
        rows = [(phase, self.top_px + i * frame.row_px) for i, phase in enumerate(self.chart.phases)]
        return tag(
            "svg",
            tag("title", "Device memory by phase and part", id=f"{key}-title"),
            tag("desc", self._description(), id=f"{key}-desc"),
            self._axis(),
            # Lines go over the bars, words over the lines.
            *(self._bar(phase, y_px) for phase, y_px in rows),
            self._band(),
            self._device_lines(),
            *(self._words(phase, y_px) for phase, y_px in rows),
            self._process_words(),
            class_=f"chart {frame.name}",
            viewBox=f"0 0 {frame.width_px:g} {height_px:.0f}",
            role="img",
            aria_labelledby=f"{key}-title {key}-desc",
            font_size=frame.font_px,
        )

    def _scale(self) -> float:
        """As large as lets every text that begins at the right of its line or bar end within the drawing."""
        frame, room_px = self.frame, self.frame.width_px - self.frame.left_px
        ends = [(phase.device_bytes, _total_text(phase), frame.font_px) for phase in self.chart.phases]
        ends.append((self.chart.process_band[1], self._process_text(), frame.font_px))
        ends += [(g[-1].usable_bytes, t, self.label_font_px) for g, t in zip(self.groups, self.texts, strict=True)]
        return min(
            (room_px - 14 - text_width_px(text, font_px)) / num_bytes for num_bytes, text, font_px in ends if num_bytes
        )

    def _axis(self) -> Markup:
        frame = self.frame
        end_bytes = (frame.width_px - 6 - frame.left_px) / self.px_per_byte
        step = tick_step(end_bytes / GIB, 9 if frame.left_px else 5)
        ticks = []
        for number in range(math.floor(end_bytes / GIB / step + 1e-9) + 1):
            x_px = self.x_of(number * step * GIB)
            text = f"{number * step:g}" + ("" if number else " GiB")
            ticks.append(tag("line", class_="grid", x1=x_px, x2=x_px, y1=self.top_px, y2=self.bottom_px))
            near_end = x_px > frame.width_px - text_width_px(text, frame.font_px) / 2
            anchor = "start" if number == 0 else "end" if near_end else "middle"
            y_px = self.bottom_px + frame.font_px * 1.4
            ticks.append(tag("text", text, class_="tick", x=x_px, y=y_px, text_anchor=anchor))
        return tag("g", ticks)

    def _device_lines(self) -> Markup:
        drawn: list[Markup] = []
        for label in self.labels:
            y_px = self._label_y(label)
            for line in label.lines:
                x_px = self.x_of(line.usable_bytes)
                hover = tag("title", f"{line.title}: {bytes_text(line.usable_bytes)} usable")
                top_px = y_px - self.label_font_px * 0.8
                end_px = self.bottom_px
                drawn.append(tag("line", class_="casing", x1=x_px, x2=x_px, y1=self.top_px, y2=end_px))
                drawn.append(tag("line", hover, class_="device", x1=x_px, x2=x_px, y1=top_px, y2=end_px))
            drawn.append(self._label(label.text, label.x_px, y_px))
        if self.beyond:
            y_px = self.label_font_px
            drawn.append(self._label(self._beyond_text(), self.frame.width_px - 2, y_px, anchor="end"))
        return tag("g", drawn)

    def _label(self, text: str, x_px: float, y_px: float, anchor: str | None = None) -> Markup:
        size = self.label_font_px
        return tag("text", text, class_="device-name", x=x_px, y=y_px, font_size=size, text_anchor=anchor)

    def _label_y(self, label: Label) -> float:
        return self.top_px - 8 - label.row * self.label_row_px

    def _beyond_text(self) -> str:
        beyond = self.beyond
        if len(beyond) == 1:
            return f"{label_text(beyond, self.frame.most_label_characters)} →"
        return f"{len(beyond)} devices with more →"

    def _bar_y(self, y_px: float) -> float:
        frame = self.frame
        return y_px + frame.name_above_px + (frame.row_px - frame.name_above_px - frame.bar_px) / 2

    def _bar(self, phase: PhaseMemory, y_px: float) -> Markup:
        drawn, x_px = [], self.x_of(0)
        for part, colour in self.chart.classes.items():
            num_bytes = phase.device_bytes_by_part.get(part, 0)
            if num_bytes:
                width_px = num_bytes * self.px_per_byte
                drawn.append(
                    tag(
                        "rect",
                        tag("title", f"{phase.phase}, {part}: {bytes_text(num_bytes)}"),
                        class_=f"part {colour}",
                        x=x_px,
                        y=self._bar_y(y_px),
                        width=float(width_px),
                        height=self.frame.bar_px,
                        data_part=part,
                        data_bytes=num_bytes,
                    )
                )
                x_px += width_px
        return tag("g", drawn, class_="bar", data_phase=phase.phase)

    def _words(self, phase: PhaseMemory, y_px: float) -> Markup:
        """The phase's name, its total, and the names of parts that have room inside their own piece of the bar."""
        frame, font_px, worst = self.frame, self.label_font_px, phase.phase == self.chart.worst_phase
        middle_px = self._bar_y(y_px) + frame.bar_px / 2
        drawn = [*self._name(phase.phase, y_px, "worst" if worst else None, "decides verdict" if worst else None)]
        x_px = self.x_of(0)
        for part, colour in self.chart.classes.items():
            width_px = phase.device_bytes_by_part.get(part, 0) * self.px_per_byte
            if text_width_px(part, font_px) + 16 < width_px:
                y_text_px, ink = middle_px + font_px * 0.36, f"inside {colour}t"
                drawn.append(tag("text", part, class_=ink, x=x_px + 8, y=y_text_px, font_size=font_px))
            x_px += width_px
        weight = "total worst" if worst else "total"
        y_text_px = middle_px + frame.font_px * 0.36
        drawn.append(tag("text", _total_text(phase), class_=weight, x=x_px + 7, y=y_text_px))
        return tag("g", drawn)

    def _name(self, name: str, y_px: float, class_: str | None, remark: str | None) -> Iterator[Markup]:
        """Names of phases stand at the left of bars, or above them where there is no room; so does what marks one."""
        frame = self.frame
        kind = f"name {class_}" if class_ else "name"
        if not frame.left_px:
            words = [name, tag("tspan", f" · {remark}", class_="remark")] if remark else [name]
            yield tag("text", words, class_=kind, x=0, y=y_px + frame.font_px * 1.25)
            return
        middle_px = y_px + frame.row_px / 2 + frame.font_px * 0.36
        x_px = frame.left_px - 12
        if remark is None:
            yield tag("text", name, class_=kind, x=x_px, y=middle_px, text_anchor="end")
            return
        yield tag("text", name, class_=kind, x=x_px, y=middle_px - frame.font_px * 0.5, text_anchor="end")
        y_px = middle_px + frame.font_px * 0.6
        yield tag(
            "text", remark, class_="remark", x=x_px, y=y_px, text_anchor="end", font_size=frame.font_px * 0.82
        )  # fmt: skip

    def _band(self) -> Markup:
        """What decides: the process with all that driver and libraries take, from the least to the most it may be."""
        frame, y_px = self.frame, self._process_y()
        (low, high), (likely_low, likely_high) = self.chart.process_band, self.chart.process_likely
        middle_px = self._bar_y(y_px) + frame.bar_px / 2
        thin_px, thick_px = frame.bar_px * 0.36, frame.bar_px * 0.72
        band_px, likely_px = self.x_of(high) - self.x_of(low), self.x_of(likely_high) - self.x_of(likely_low)
        return tag(
            "g",
            tag("line", class_="rule", x1=frame.left_px, x2=frame.width_px, y1=y_px, y2=y_px),
            tag("rect", class_="band", x=self.x_of(low), y=middle_px - thin_px / 2, width=band_px, height=thin_px),
            tag(
                "rect",
                class_="likely",
                x=self.x_of(likely_low),
                y=middle_px - thick_px / 2,
                width=max(3.0, likely_px),
                height=thick_px,
            ),
        )

    def _process_words(self) -> Markup:
        y_px = self._process_y()
        x_px = self.x_of(self.chart.process_band[1]) + 7
        middle_px = self._bar_y(y_px) + self.frame.bar_px / 2 + self.frame.font_px * 0.36
        text = tag("text", self._process_text(), class_="total", x=x_px, y=middle_px)
        return tag("g", *self._name("whole process", y_px, None, None), text)

    def _process_y(self) -> float:
        return self.top_px + len(self.chart.phases) * self.frame.row_px

    def _process_text(self) -> str:
        texts = list(dict.fromkeys(bytes_text(likely) for likely in self.chart.process_likely))
        return "likely " + " to ".join(texts)

    def _description(self) -> str:
        phases = "; ".join(f"{phase.phase} {bytes_text(phase.device_bytes)}" for phase in self.chart.phases)
        lines = "; ".join(f"{line.title} {bytes_text(line.usable_bytes)}" for line in self.chart.lines)
        low, high = (bytes_text(edge) for edge in self.chart.process_band)
        return (
            f"Bars, one for each phase: {phases}. Most in {self.chart.worst_phase}. "
            f"The whole process takes between {low} and {high}. Lines, what each device can give: {lines}. "
            "The tables below hold the same figures."
        )


def _total_text(phase: PhaseMemory) -> str:
    return bytes_text(phase.device_bytes)
