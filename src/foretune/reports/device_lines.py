"""Where the names of devices stand above a chart: near ones share a name, and no name lies on another or on a line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

SAME_SHARE = 0.03
"""Devices whose memories differ by no more than this share a name."""
CHARACTER_EM = 0.58
"""Width of a character, in heights of the letters: generous for the usual sans-serif faces."""


@dataclass(frozen=True)
class DeviceLine:
    """One device on the scale."""

    title: str
    usable_bytes: int
    memory_gb: float | None
    """As it is sold; None where that is not known."""


@dataclass(frozen=True)
class Label:
    """The name that near devices share. Row 0 is nearest to the bars."""

    lines: tuple[DeviceLine, ...]
    text: str
    x_px: float
    width_px: float
    row: int


def group_lines(lines: Sequence[DeviceLine]) -> list[tuple[DeviceLine, ...]]:
    """From the smallest memory to the largest; a group spans at most `SAME_SHARE`."""
    groups: list[list[DeviceLine]] = []
    for line in sorted(lines, key=lambda line: line.usable_bytes):
        if groups and line.usable_bytes <= groups[-1][0].usable_bytes * (1 + SAME_SHARE):
            groups[-1].append(line)
        else:
            groups.append([line])
    return [tuple(group) for group in groups]


def label_text(group: Sequence[DeviceLine], most_characters: int) -> str:
    """24 GB: RTX 3090, RTX 4090. Names that find no room are counted: +2."""
    head = _memory_text(group)
    titles = list(dict.fromkeys(line.title for line in group))
    for num_shown in range(len(titles), 0, -1):
        more = len(titles) - num_shown
        text = head + ", ".join(titles[:num_shown]) + (f" +{more}" if more else "")
        if len(text) <= most_characters:
            return text
    tail = f"… +{len(titles) - 1}" if len(titles) > 1 else "…"
    return (head + titles[0])[: most_characters - len(tail)].rstrip() + tail


def text_width_px(text: str, font_px: float) -> float:
    """An estimate: no browser is asked."""
    return len(text) * CHARACTER_EM * font_px


def place_labels(
    groups: Sequence[tuple[DeviceLine, ...]],
    texts: Sequence[str],
    x_of: Callable[[int], float],
    font_px: float,
) -> list[Label]:
    """Every name begins at the right of its line.

    A line rises from the bars to the row of its name. So a name must be above those of all lines that it reaches over:
    then it is on none of them, and no line crosses it.
    """
    placed: list[Label] = []
    for group, text in reversed(list(zip(groups, texts, strict=True))):
        x_px = x_of(group[-1].usable_bytes) + font_px * 0.4
        width_px = text_width_px(text, font_px)
        below = [label.row for label in placed if x_of(label.lines[0].usable_bytes) < x_px + width_px + font_px]
        placed.append(Label(group, text, x_px, width_px, max(below, default=-1) + 1))
    return placed[::-1]


def _memory_text(group: Sequence[DeviceLine]) -> str:
    sold = [line.memory_gb for line in group if line.memory_gb is not None]
    if not sold:
        return ""
    low, high = min(sold), max(sold)
    return f"{low:g} GB: " if low == high else f"{low:g}–{high:g} GB: "
