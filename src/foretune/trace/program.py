"""Builds a StepTrace for every size and depth from a few recordings of a small, shallow step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from foretune.core.values.step_trace import NEVER, BlockKind, Growth, Moment, Storage
from foretune.trace.growth import IrregularGrowth, Sizes, fit, for_each_sample
from foretune.trace.timeline import EventPoint, Lifetime, Timeline

# Storages that depend on batch or rank in no known way have a few elements; a larger one would be our own bug.
_MOST_IRREGULAR_BYTES = 1 << 20
# The first two and last two blocks of a kind have different neighbours; those in between are all alike.
_NUM_ENDS = 2
FEW_BLOCKS, MANY_BLOCKS = 2 * _NUM_ENDS, 2 * _NUM_ENDS + 2
"""Number of blocks of a kind to record: usually, and if a tensor is passed on across more than one block."""


Fit = Callable[[Sequence[Sizes], Sequence[float]], Growth]
"""Fits how a number grows from its values at several sizes."""


class IrregularStep(Exception):
    """Raised if blocks or sizes of a step do not repeat regularly, so that it cannot be extrapolated."""


@dataclass(frozen=True)
class BlockRun:
    """Neighbouring blocks of one kind, by their indices in the traced model."""

    start: int
    count: int
    full_count: int
    """Their number in the real model."""

    def __contains__(self, block: int) -> bool:
        return self.start <= block < self.start + self.count


def block_runs(kinds: Sequence[int], full_kinds: Sequence[int]) -> tuple[BlockRun, ...]:
    """Returns the runs of equal blocks of a shallow model, each with its length in the full-depth model."""
    shallow = [len(list(run)) for _, run in groupby(kinds)]
    full = [len(list(run)) for _, run in groupby(full_kinds)]
    if len(shallow) != len(full):
        raise IrregularStep(f"{len(shallow)} runs of equal blocks in the shallow model, {len(full)} in the full one")
    runs, start = [], 0
    for count, full_count in zip(shallow, full, strict=True):
        if count != full_count and count < FEW_BLOCKS:
            raise IrregularStep(f"{count} blocks are too few to tell {full_count} from")
        runs.append(BlockRun(start, count, full_count))
        start += count
    return tuple(runs)


@dataclass
class Program:
    """The parts of a StepTrace while it is built."""

    runs: tuple[BlockRun, ...]
    per_sample: bool = False
    fit: Fit = fit
    growths: dict[Growth, int] = field(default_factory=dict)
    categories: dict[str, int] = field(default_factory=dict)
    outside: tuple[Storage, ...] = ()
    kinds: tuple[BlockKind, ...] = ()


def build_program(
    timelines: Sequence[Timeline],
    sizes: Sequence[Sizes],
    runs: tuple[BlockRun, ...],
    *,
    per_sample: bool = False,
    fit: Fit = fit,
) -> Program:
    """Fits each storage's bytes to the probes and folds equal blocks into one.

    `per_sample`: the probes have one sample each, because the model processes a batch sample by sample.
    """
    program = Program(runs, per_sample, fit)
    rows = [_fitted(program, probes, sizes) for probes in _aligned(timelines)]
    by_owner: dict[int | None, list[_Row]] = {}
    for row in rows:
        by_owner.setdefault(row.lifetime.owner, []).append(row)
    program.outside = tuple(_storage(row, runs, relative=False) for row in by_owner.get(None, []))
    program.kinds = tuple(_folded(f"kind {index}", run, by_owner, runs) for index, run in enumerate(runs))
    return program


@dataclass(frozen=True)
class _Row:
    lifetime: Lifetime
    growth: int
    category: int


def _aligned(timelines: Sequence[Timeline]) -> Sequence[tuple[Lifetime, ...]]:
    base = timelines[0]
    for other in timelines[1:]:
        if other.phases != base.phases or len(other.lifetimes) != len(base.lifetimes):
            raise IrregularStep("the step does other things at another size")
    columns = list(zip(*(one.lifetimes for one in timelines), strict=True))
    for column in columns:
        first = column[0]
        if any(
            (one.made, one.released, one.category) != (first.made, first.released, first.category) for one in column
        ):
            raise IrregularStep(f"a {first.operator} lives elsewhere at another size: {column}")
    return columns


def _fitted(program: Program, probes: tuple[Lifetime, ...], sizes: Sequence[Sizes]) -> _Row:
    values = [lifetime.num_bytes for lifetime in probes]
    try:
        growth = program.fit(sizes, values)
    except IrregularGrowth as error:
        if max(values) > _MOST_IRREGULAR_BYTES:
            raise IrregularStep(f"{probes[0].operator} {probes[0].shape}: {error}") from error
        growth = Growth(terms=((float(max(values)), (0, 0, 0, 0)),))
    if program.per_sample:
        growth = for_each_sample(growth)
    return _Row(
        probes[0],
        program.growths.setdefault(growth, len(program.growths)),
        program.categories.setdefault(probes[0].category, len(program.categories)),
    )


def _folded(name: str, run: BlockRun, by_owner: dict[int | None, list[_Row]], runs: tuple[BlockRun, ...]) -> BlockKind:
    def listed(index: int) -> tuple[Storage, ...]:
        return tuple(_storage(row, runs, relative=True) for row in by_owner.get(run.start + index, []))

    if run.count == run.full_count:
        return BlockKind(name=name, count=run.count, first=tuple(map(listed, range(run.count))), middle=(), last=())
    # Of six blocks, the two in the middle have neighbours like themselves; of four, each has one such neighbour.
    one, other = (_NUM_ENDS, run.count - 1 - _NUM_ENDS) if run.count >= MANY_BLOCKS else (1, run.count - 2)
    after_first = by_owner.get(run.start + one, [])
    before_last = by_owner.get(run.start + other, [])
    if len(after_first) != len(before_last):
        raise IrregularStep(f"equal blocks have {len(after_first)} and {len(before_last)} storages")
    return BlockKind(
        name=name,
        count=run.full_count,
        first=(listed(0), listed(1)),
        middle=tuple(_between(a, b, runs) for a, b in zip(after_first, before_last, strict=True)),
        last=(listed(run.count - 2), listed(run.count - 1)),
    )


def _between(after_first: _Row, before_last: _Row, runs: tuple[BlockRun, ...]) -> Storage:
    """Returns a storage of a middle block, whose neighbours are both of its kind and not at an end.

    What it leaves to the next block is taken from the second block, whose successor is a middle block; what it leaves
    to the previous block, from the second to last.
    """
    for relative in (True, False):
        one, other = (_storage(row, runs, relative=relative) for row in (after_first, before_last))
        same = (one.growth, one.category) == (other.growth, other.category)
        if same and _same_moment(one.made, other.made) and _same_moment(one.released, other.released):
            return other if one.released.block == "own" and one.released.offset < 0 else one
    raise IrregularStep(f"equal blocks differ: {after_first.lifetime} and {before_last.lifetime}")


def _same_moment(a: Moment, b: Moment) -> bool:
    return (a.phase, a.block, a.kind, a.offset) == (b.phase, b.block, b.kind, b.offset)


def _storage(row: _Row, runs: tuple[BlockRun, ...], *, relative: bool) -> Storage:
    lifetime = row.lifetime
    return Storage(
        made=_moment(lifetime.made, lifetime.owner, runs, relative=True),
        released=_moment(lifetime.released, lifetime.owner, runs, relative=relative),
        growth=row.growth,
        category=row.category,
    )


def _moment(point: EventPoint | None, owner: int | None, runs: tuple[BlockRun, ...], *, relative: bool) -> Moment:
    if point is None:
        return Moment(phase=NEVER)
    if point.block is None:
        return Moment(phase=point.phase, position=point.position)
    kind, run = next((index, run) for index, run in enumerate(runs) if point.block in run)
    if owner is not None and owner in run:
        distance = point.block - owner
        if distance == 0 or (relative and abs(distance) == 1):
            return Moment(phase=point.phase, block="own", offset=distance, position=point.position)
    index = point.block - run.start
    from_start = index < _NUM_ENDS or run.count == run.full_count
    return Moment(
        phase=point.phase,
        block="from start" if from_start else "from end",
        kind=kind,
        offset=index if from_start else run.count - 1 - index,
        position=point.position,
    )
