"""Which configurations nothing else beats in everything at once: the Pareto front, with intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from foretune.analyse.groups import Configuration
from foretune.analyse.run_numbers import Measure
from foretune.stats.intervals import Estimate

Standing = Literal["on the front", "maybe", "beaten", "not known"]


@dataclass(frozen=True)
class Placed:
    """One configuration and where it stands."""

    configuration: Configuration
    estimates: tuple[Estimate | None, ...]
    """One for each measure."""
    standing: Standing
    """"beaten": another is no worse in anything, and shown to be better in something. "maybe": the same by the means,
    but nothing of it is shown. "not known": something was not measured."""
    beaten_by: str | None
    """The letter of one that is better, where there is one."""


def placed(found: Sequence[Configuration], measures: Sequence[Measure]) -> list[Placed]:
    """Where each configuration stands, by all measures together."""
    rows = [tuple(measure.estimate(one.finished) for measure in measures) for one in found]
    better = [measure.higher_is_better for measure in measures]
    answers = []
    for number, (one, row) in enumerate(zip(found, rows, strict=True)):
        standing, by = _standing(number, rows, better)
        answers.append(Placed(one, row, standing, None if by is None else found[by].letter or found[by].label))
    return answers


def front_by_mean(points: Sequence[tuple[float, float]], higher: tuple[bool, bool]) -> list[int]:
    """The points of a plane that no other beats, in the order of the first axis."""
    signed = [tuple(value if up else -value for value, up in zip(point, higher, strict=True)) for point in points]
    front = [
        number
        for number, point in enumerate(signed)
        if not any(other != point and all(b >= a for a, b in zip(point, other, strict=True)) for other in signed)
    ]
    return sorted(front, key=lambda number: points[number])


def _standing(
    number: int, rows: Sequence[Sequence[Estimate | None]], better: Sequence[bool]
) -> tuple[Standing, int | None]:
    own = rows[number]
    if any(estimate is None for estimate in own):
        return "not known", None
    maybe: int | None = None
    for other, row in enumerate(rows):
        if other == number or any(estimate is None for estimate in row) or not _is_no_worse(row, own, better):
            continue
        if any(_is_shown(a, b, up) for a, b, up in zip(row, own, better, strict=True)):
            return "beaten", other
        if maybe is None and any(_mean(a) != _mean(b) for a, b in zip(row, own, strict=True)):
            maybe = other
    return ("on the front", None) if maybe is None else ("maybe", maybe)


def _is_no_worse(row: Sequence[Estimate | None], own: Sequence[Estimate | None], better: Sequence[bool]) -> bool:
    return all(_mean(a) >= _mean(b) if up else _mean(a) <= _mean(b) for a, b, up in zip(row, own, better, strict=True))


def _is_shown(a: Estimate | None, b: Estimate | None, up: bool) -> bool:
    """Whether the intervals lie apart, which is more than a test of the difference asks."""
    if a is None or b is None or a.low is None or b.low is None or a.high is None or b.high is None:
        return False
    return a.low > b.high if up else a.high < b.low


def _mean(estimate: Estimate | None) -> float:
    assert estimate is not None, "asked where everything was measured"
    assert estimate.value is not None, "a mean of runs is a number"
    return estimate.value
