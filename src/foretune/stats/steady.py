"""Where a series of step times becomes steady: found, not assumed.

The series is cut where its level changes (binary segmentation by cumulated sums, with a threshold that knows that
neighbouring steps resemble each other). It is steady from the first piece on whose level all later pieces share. A
series that comes to rest only in its second half, or whose steady part still has a trend, is not steady.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST_STEPS = 8
"""Fewer cannot show whether they are steady."""
_NUM_ASSUMED_WARMUP = 2
"""Left out of a series that is too short to ask: the first steps allocate and tune."""
_FEWEST_IN_A_PIECE = 4
_MOST_WARMUP_SHARE = 0.5
_SMALLEST_CHANGE = 0.03
"""Levels closer than this share are one level: nobody's decision depends on it."""
_FENCE_IQRS = 3.0
"""A value further outside the quartiles than this many of their distances is a spike."""
_IQRS_OF_NORMAL = 1.35
"""Distance of the quartiles of a normal distribution, in standard deviations."""
_NUM_NEIGHBOURS = 25
_LEAST_NOISE = 0.002
"""As a share of the level: clocks are not finer than this in any way that matters."""
_MOST_CORRELATION = 0.6
"""A series that resembles itself more than this is wandering, not steady with a long memory."""
_PIECE_THRESHOLD = 1.3
"""Times the largest sum that noise alone would show; set so that steady series of 200 steps pass in 98 of 100."""
_REFINING_NOISES = 1.5
"""Standard deviations of single values within which the middle of three belongs to the steady part."""
_SAME_LEVEL_ERRORS = 2.5
"""Standard errors within which the levels of two pieces are one."""
_TREND_THRESHOLD = 3.0
"""Standard errors of a slope beyond which there is a trend: noise alone shows one in about 3 of 1,000 series."""


@dataclass(frozen=True)
class Steady:
    """From which step on a series is steady, if it is."""

    num_warmup: int
    """Steps before the steady part; where there is none, leading steps unlike all that follow."""
    is_steady: bool
    why: str
    """One sentence: what the warm-up was, or why there is no steady part."""
    last_change: int = 0
    """The step from which on the level is that of the end, if only for the last few steps."""
    is_short: bool = False
    """Whether there were too few to ask."""


def find_steady(times: Sequence[float]) -> Steady:
    """The warm-up at the head of a series of step times, and whether what follows is steady."""
    if len(times) < FEWEST_STEPS:
        num_warmup = min(_NUM_ASSUMED_WARMUP, max(len(times) - 1, 0))
        values = "1 value is" if len(times) == 1 else f"{len(times)} values are"
        dropped = ("none was", "the first was", "the first 2 were")[num_warmup]
        return Steady(
            num_warmup,
            is_steady=False,
            why=f"{values} too few to find the warm-up in ({FEWEST_STEPS} are needed): {dropped} left out",
            last_change=num_warmup,
            is_short=True,
        )
    series = _Series(times)
    start = series.first_steady_step()
    late = start > _MOST_WARMUP_SHARE * len(times)
    if late:
        # There is no steady part to stand before; only what is unlike all that follows is a warm-up.
        return Steady(series.num_outside_head(), is_steady=False, why=series.why_late(start), last_change=start)
    trend = series.trend_from(start)
    if trend is not None:
        direction = "longer" if trend > 0 else "shorter"
        return Steady(
            start,
            is_steady=False,
            why=f"drifting: from step {start + 1} to step {len(times)} the steps get {abs(trend):.0%} {direction}",
            last_change=start,
        )
    return Steady(start, is_steady=True, why=series.why_warm(start), last_change=start)


class _Series:
    """A series with its spikes clipped, and the noise to judge changes against."""

    def __init__(self, times: Sequence[float]) -> None:
        self.raw = times
        rear = sorted(times[len(times) // 2 :])
        self.level = _quantile(rear, 0.5)
        lower, upper = _quantile(rear, 0.25), _quantile(rear, 0.75)
        reach = max(_FENCE_IQRS * (upper - lower), _SMALLEST_CHANGE * self.level)
        self.fences = (lower - reach, upper + reach)
        self.core_noise = 0.0
        self.values = self._without_spikes()
        self.sums = list(itertools.accumulate(self.values, initial=0.0))
        self.noise, self.long_noise = _noise(self.values[len(times) // 4 :], _LEAST_NOISE * self.level)

    def _without_spikes(self) -> list[float]:
        """Single values far from their neighbours, drawn in: they belong to the series, but make no level.

        At the head a few far values may be a warm-up, so there only what the rear half never shows is drawn in.
        """
        times, half, num_head = self.raw, _NUM_NEIGHBOURS // 2, len(self.raw) // 4
        middles = [statistics.median(times[max(0, i - half) : i + half + 1]) for i in range(len(times))]
        rests = sorted(value - middle for value, middle in zip(times, middles, strict=True))
        lower, upper = _quantile(rests, 0.25), _quantile(rests, 0.75)
        self.core_noise = max((upper - lower) / _IQRS_OF_NORMAL, _LEAST_NOISE * self.level)
        reach = _FENCE_IQRS * self.core_noise * _IQRS_OF_NORMAL
        low, high = self.fences
        return [
            min(max(value, low), high)
            if place < num_head
            else min(max(value, middle + lower - reach), middle + upper + reach)
            for place, (value, middle) in enumerate(zip(times, middles, strict=True))
        ]

    def mean(self, start: int, end: int) -> float:
        return (self.sums[end] - self.sums[start]) / (end - start)

    def first_steady_step(self) -> int:
        head = self.num_outside_head()
        pieces = [head, *self._cuts(head, len(self.values)), len(self.values)]
        first = len(pieces) - 2
        while first > 0 and self._is_same_level(pieces[first - 1], pieces[first]):
            first -= 1
        return self._refined(pieces[first], head)

    def num_outside_head(self) -> int:
        """Leading steps outside what the rear half shows at all: the first step of most runs, or compilation."""
        low, high = self.fences
        return next((i for i, value in enumerate(self.raw) if low <= value <= high), len(self.raw))

    def _cuts(self, start: int, end: int) -> list[int]:
        """Where the level changes within [start, end), in order."""
        length = end - start
        least = min(_FEWEST_IN_A_PIECE, max(1, length // 2))
        if length < 2 * least:
            return []
        best, place = 0.0, start
        total, sums = self.sums[end] - self.sums[start], self.sums
        for cut in range(start + least, end - least + 1):
            left = cut - start
            moved = abs(sums[cut] - sums[start] - total * left / length) / math.sqrt(left * (length - left) / length)
            if moved > best:
                best, place = moved, cut
        threshold = _PIECE_THRESHOLD * self.long_noise * math.sqrt(2 * math.log(len(self.values)))
        if best <= threshold:
            return []
        return [*self._cuts(start, place), place, *self._cuts(place, end)]

    def _is_same_level(self, start: int, end: int) -> bool:
        """Whether a piece has the level of all that follows, as far as the noise allows to see."""
        num = len(self.values)
        error = self.long_noise * math.sqrt(1 / (end - start) + 1 / (num - end))
        difference = abs(self.mean(start, end) - self.mean(end, num))
        return difference <= max(_SMALLEST_CHANGE * self.level, _SAME_LEVEL_ERRORS * error)

    def _refined(self, start: int, head: int) -> int:
        """A cut lies a little early where a warm-up fades, and a little late where a piece had to be longer.

        What stands out at the head stays a warm-up: drawn in as a spike, it would look like one of the others.
        """
        level = statistics.median(self.values[start:])
        reach = max(_REFINING_NOISES * self.core_noise, 0.5 * _SMALLEST_CHANGE * level)
        place, num = start, len(self.values)
        while place < num // 2 and abs(statistics.median(self.values[place : place + 3]) - level) > reach:
            place += 1
        if place > start:
            return place
        while place > max(head, start - _FEWEST_IN_A_PIECE) and abs(self.values[place - 1] - level) <= reach:
            place -= 1
        return place

    def trend_from(self, start: int) -> float | None:
        """The change over the steady part as a share of its level; None where no trend is shown."""
        values = self.values[start:]
        num = len(values)
        slope, _ = _line(values)
        slope_error = self.long_noise * math.sqrt(12 / (num * (num * num - 1)))
        change = slope * (num - 1) / self.level
        return change if abs(slope) > _TREND_THRESHOLD * slope_error and abs(change) > _SMALLEST_CHANGE else None

    def why_late(self, start: int) -> str:
        num = len(self.values)
        if start >= num - FEWEST_STEPS:
            return f"never steady: the level still changes at step {min(start, num - 1) + 1} of {num}"
        return f"never steady: the last change of level comes at step {start + 1} of {num}, in the second half"

    def why_warm(self, start: int) -> str:
        if start == 0:
            return "no warm-up was found"
        level = statistics.median(self.raw[start:])
        steps = "1 warm-up step" if start == 1 else f"{start} warm-up steps"
        return f"{steps}: {statistics.fmean(self.raw[:start]) / level:.2f} times as long as those after"


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _line(values: Sequence[float]) -> tuple[float, float]:
    """Slope a step, and mean, of the straight line through a series."""
    num = len(values)
    mean, centre = statistics.fmean(values), (num - 1) / 2
    slope = sum((i - centre) * value for i, value in enumerate(values)) / (num * (num * num - 1) / 12)
    return slope, mean


def _noise(values: Sequence[float], least: float) -> tuple[float, float]:
    """Spread of single values around their level, and the spread that sums of them show.

    Both come from differences of neighbours, which a trend or a few changes of level hardly touch. Where neighbours
    resemble each other by r, differences over two steps are 1 + r times as large (squared) as those over one, and
    sums wander further than independent values would.
    """
    one = _mean_square([after - before for before, after in itertools.pairwise(values)])
    two = _mean_square([after - before for before, after in zip(values, values[2:], strict=False)])
    correlation = min(max(two / one - 1, 0.0), _MOST_CORRELATION) if one > 0 else 0.0
    noise = max(math.sqrt(one / 2 / (1 - correlation)), least)
    return noise, noise * math.sqrt((1 + correlation) / (1 - correlation))


def _mean_square(values: Sequence[float]) -> float:
    return sum(value * value for value in values) / len(values)
