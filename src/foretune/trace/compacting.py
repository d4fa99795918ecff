"""Reduces a forward pass to few storages: those that matter for its peak, and one for all small ones at the peak."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from foretune.core.values.step_trace import NEVER, Growth, Moment, Powers, Storage
from foretune.core.vocabulary import WEIGHTS, MemoryPart
from foretune.trace.growth import IrregularGrowth, Sizes, fit
from foretune.trace.program import IrregularStep
from foretune.trace.timeline import Timeline

# Storages below this share of the peak are not listed individually.
_SMALL_SHARE = 1e-3
# If very many are left, the limit may rise to this share.
_MOST_SHARE = 5e-3
# Maximum relative change of the peak when small storages are merged.
_MOST_CHANGE = 1e-3
_MOST_STORAGES = 400
# Padded borders do not grow linearly with the area; around the probed sizes they nearly do.
_NEARLY = 0.02
_NEGLIGIBLE_BYTES = 1 << 20
_MOST_EXCESS_BYTES = 1 << 25

Time = tuple[int, int]


@dataclass(frozen=True)
class Life:
    """One storage of a forward pass: its lifetime, growth and category."""

    made: Time
    released: Time | None
    growth: Growth
    category: str


def fitted(timelines: Sequence[Timeline], sizes: Sequence[Sizes], left_out: Iterable[str] = ()) -> list[Life]:
    """Returns the storages of one program recorded at several sizes, without the categories in `left_out`."""
    base, dropped = timelines[0], frozenset(left_out)
    if any(len(other.lifetimes) != len(base.lifetimes) or other.phases != base.phases for other in timelines):
        raise IrregularStep("the forward pass does other things at another size")
    known: dict[tuple[int, ...], Growth] = {}
    lives = []
    for column in zip(*(line.lifetimes for line in timelines), strict=True):
        first = column[0]
        if any((one.made, one.released) != (first.made, first.released) for one in column):
            raise IrregularStep(f"a {first.operator} lives elsewhere at another size")
        if first.category in dropped:
            continue
        values = tuple(one.num_bytes for one in column)
        if values not in known:
            known[values] = _growth(sizes, values)
        released = (first.released.phase, first.released.position) if first.released else None
        lives.append(Life((first.made.phase, first.made.position), released, known[values], first.category))
    return lives


def _growth(sizes: Sequence[Sizes], values: Sequence[int]) -> Growth:
    try:
        return fit(sizes, values)
    except IrregularGrowth as error:
        if max(values) <= _NEGLIGIBLE_BYTES:
            return Growth(terms=((float(max(values)), (0, 0, 0, 0)),))
        return _nearly_even(sizes, values, error)


def _nearly_even(sizes: Sequence[Sizes], values: Sequence[int], error: IrregularGrowth) -> Growth:
    """Returns samples x (constant + slope x latent positions), if that nearly matches every probe.

    A small excess is accepted: a table for one frame is treated as one for all frames.
    """
    base = sizes[0]
    other = next(index for index, size in enumerate(sizes) if size[1] != base[1] and size[0] == base[0])
    slope = (values[other] - values[0]) / (sizes[other][1] - base[1]) / base[0]
    constant = values[0] / base[0] - slope * base[1]
    growth = Growth(terms=((constant, (1, 0, 0, 0)), (slope, (1, 1, 0, 0))))
    for size, value in zip(sizes, values, strict=True):
        excess = growth.at(size) - value
        if abs(excess) > _NEARLY * value and not 0 < excess < _MOST_EXCESS_BYTES:
            raise IrregularStep(str(error)) from error
    return growth


def per_sample(growth: Growth, num_samples: int) -> Growth:
    """Generalises a growth found at one number of samples: what grows with the sample size is assumed to grow with the
    number of samples.

    This is an upper bound: work that runs sample by sample does not grow.
    """
    terms = []
    for coefficient, (batch, image, text, rank) in growth.terms:
        grows = batch == 0 and (image > 0 or text > 0)
        terms.append(
            (coefficient / num_samples, (1, image, text, rank)) if grows else (coefficient, (batch, image, text, rank))
        )
    return Growth(terms=tuple(terms))


def at_any_size(life: Life, size: Sizes) -> Life:
    """Generalises a storage of one recording: except for weights, it is assumed to grow with samples and their area."""
    num_bytes = life.growth.at(size)
    if life.category in WEIGHTS or life.category == MemoryPart.CAST_WEIGHTS:
        return life
    return replace(life, growth=Growth(terms=((num_bytes / size[0] / size[1], (1, 1, 0, 0)),)))


def compacted(lives: Sequence[Life], sizes: Sequence[Sizes]) -> list[Life]:
    """Returns fewer storages with the same peak at the given sizes, to a thousandth.

    Weights become one storage. Storages that are large at any of the sizes stay. The small ones that are alive at the
    peak become one, which grows as their sum.
    """
    lives = _weights_as_one(lives)
    share = _SMALL_SHARE
    found = _without_small(lives, sizes, share)
    while len(found) > _MOST_STORAGES and share < _MOST_SHARE and _change(lives, found, sizes) <= _MOST_CHANGE:
        share *= 1.5
        fewer = _without_small(lives, sizes, share)
        if _change(lives, fewer, sizes) > _MOST_CHANGE:
            break
        found = fewer
    while _change(lives, found, sizes) > _MOST_CHANGE:
        share /= 2
        found = _without_small(lives, sizes, share)
    return found


def peak_bytes(lives: Iterable[Life], size: Sizes) -> int:
    """Returns the maximum number of live bytes."""
    return _peak([(life, life.growth.at(size)) for life in lives])[0]


def _change(before: Sequence[Life], after: Sequence[Life], sizes: Sequence[Sizes]) -> float:
    return max(abs(peak_bytes(after, size) / peak_bytes(before, size) - 1) for size in sizes)


def _weights_as_one(lives: Sequence[Life]) -> list[Life]:
    found = [life for life in lives if life.category not in WEIGHTS]
    for category in WEIGHTS:
        weights = [life for life in lives if life.category == category]
        if weights:
            found.append(replace(weights[0], growth=_sum(life.growth for life in weights)))
    return found


def _without_small(lives: Sequence[Life], sizes: Sequence[Sizes], share: float) -> list[Life]:
    kept = {index for index, life in enumerate(lives) if life.category in WEIGHTS}
    at_peak: set[int] = set()
    for size in sizes:
        sized = [(life, life.growth.at(size)) for life in lives]
        peak, moment = _peak(sized)
        kept |= {index for index, (_, num_bytes) in enumerate(sized) if num_bytes >= share * peak}
        at_peak = {index for index, life in enumerate(lives) if _is_alive(life, moment)}
    small = [lives[index] for index in sorted(at_peak - kept)]
    found = [lives[index] for index in sorted(kept)]
    if small:
        ends = [life.released for life in small]
        last = None if None in ends else max(end for end in ends if end is not None)
        found.append(
            Life(min(life.made for life in small), last, _sum(s.growth for s in small), MemoryPart.TEMPORARIES)
        )
    return found


def _peak(sized: Sequence[tuple[Life, float]]) -> tuple[int, Time]:
    changes: list[tuple[Time, float]] = []
    for life, num_bytes in sized:
        changes.append((life.made, num_bytes))
        if life.released is not None:
            changes.append((life.released, -num_bytes))
    live = most = 0.0
    moment: Time = (0, 0)
    for when, change in sorted(changes, key=lambda pair: pair[0]):
        live += change
        if live > most:
            most, moment = live, when
    return round(most), moment


def _is_alive(life: Life, moment: Time) -> bool:
    return life.made <= moment and (life.released is None or life.released > moment)


def _sum(growths: Iterable[Growth]) -> Growth:
    totals: Counter[Powers] = Counter()
    for growth in growths:
        for coefficient, powers in growth.terms:
            totals[powers] += coefficient  # type: ignore[assignment]
    return Growth(terms=tuple((float(value), powers) for powers, value in sorted(totals.items())))


def as_storages(
    lives: Sequence[Life], index_of_growth: Callable[[Growth], int], index_of_category: Callable[[str], int]
) -> tuple[Storage, ...]:
    """Returns the storages in order of allocation, with moments renumbered to small integers."""
    times = sorted({t for life in lives for t in (life.made, life.released) if t is not None})
    place = {time: number for number, time in enumerate(times)}
    return tuple(
        Storage(
            made=Moment(phase=life.made[0], position=place[life.made]),
            released=Moment(phase=NEVER)
            if life.released is None
            else Moment(phase=life.released[0], position=place[life.released]),
            growth=index_of_growth(life.growth),
            category=index_of_category(life.category),
        )
        for life in sorted(lives, key=lambda life: life.made)
    )
