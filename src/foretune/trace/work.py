"""Sums the FLOPs and bytes of a step's operators by kind, as functions of the sizes."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foretune.core.values.step_trace import OUTSIDE, Growth, HostOperators, Powers, Work
from foretune.trace.growth import IrregularGrowth, Sizes, fit, for_each_sample
from foretune.trace.program import BlockRun, IrregularStep
from foretune.trace.recorder import Operation, Place
from foretune.trace.tracing import TracedStep

# The second of repeated blocks represents all of them: both of its neighbours are of its kind.
_REPRESENTATIVE = 1


@dataclass(frozen=True)
class _Sort:
    phase: str
    kind: int
    operator: str
    dtype: str


def total_work(
    runs: tuple[BlockRun, ...], steps: Sequence[TracedStep], sizes: Sequence[Sizes], *, per_sample: bool = False
) -> tuple[tuple[Work, ...], tuple[HostOperators, ...]]:
    """Returns the work of each kind of operator, and the number of operators that the host issues for it."""
    return _work(runs, steps, sizes, per_sample=per_sample), _host_operators(runs, steps[0])


def _work(
    runs: tuple[BlockRun, ...], steps: Sequence[TracedStep], sizes: Sequence[Sizes], *, per_sample: bool
) -> tuple[Work, ...]:
    counts: Counter[_Sort] = Counter()
    flops: dict[_Sort, dict[Powers, float]] = {}
    moved: dict[_Sort, dict[Powers, float]] = {}
    known: dict[tuple[float, ...], Growth] = {}
    for column in _aligned(steps):
        kind, is_counted = _kind(runs, column[0].place)
        if not is_counted:
            continue
        sort = _Sort(column[0].place.phase, kind, column[0].kind, column[0].dtype)
        counts[sort] += 1
        for totals, of in ((flops, lambda o: o.flops), (moved, lambda o: o.num_bytes_moved)):
            growth = _growth(column, of, sizes, known)
            _add(totals.setdefault(sort, {}), for_each_sample(growth) if per_sample else growth)
    return tuple(
        Work(
            phase=sort.phase,
            kind=sort.kind,
            operator=sort.operator,
            dtype=sort.dtype,
            count=count,
            flops=_as_growth(flops[sort]),
            bytes_moved=_as_growth(moved[sort]),
        )
        for sort, count in counts.items()
    )


def _aligned(steps: Sequence[TracedStep]) -> Sequence[tuple[Operation, ...]]:
    lists = [step.recording.operations for step in steps]
    if len({len(operations) for operations in lists}) != 1:
        raise IrregularStep("the step has another number of operators at another size")
    return list(zip(*lists, strict=True))


def _kind(runs: tuple[BlockRun, ...], place: Place) -> tuple[int, bool]:
    """Returns the kind of block a place belongs to, and whether it is the representative of its kind."""
    if place.block is None:
        return OUTSIDE, True
    kind, run = next((index, run) for index, run in enumerate(runs) if place.block in run)
    if run.count == run.full_count:
        # All blocks of the kind are recorded, so each is counted, as work that is done once.
        return OUTSIDE, True
    return kind, place.block - run.start == _REPRESENTATIVE


def _growth(
    column: tuple[Operation, ...],
    of: Callable[[Operation], int],
    sizes: Sequence[Sizes],
    known: dict[tuple[float, ...], Growth],
) -> Growth:
    values = tuple(float(of(operation)) for operation in column)
    if values not in known:
        try:
            known[values] = fit(sizes, values)
        except IrregularGrowth:
            # Several results with different growths in one operator: use the largest value as a constant.
            known[values] = Growth(terms=((max(values), (0, 0, 0, 0)),))
    return known[values]


def _add(total: dict[Powers, float], growth: Growth) -> None:
    for coefficient, powers in growth.terms:
        total[powers] = total.get(powers, 0.0) + coefficient


def _as_growth(total: dict[Powers, float]) -> Growth:
    return Growth(terms=tuple((value, powers) for powers, value in sorted(total.items())))


def _host_operators(runs: tuple[BlockRun, ...], step: TracedStep) -> tuple[HostOperators, ...]:
    totals: Counter[tuple[str, int]] = Counter()
    for place, count in step.recording.num_dispatched.items():
        kind, is_counted = _kind(runs, place)
        if is_counted:
            totals[place.phase, kind] += count
    return tuple(HostOperators(phase=phase, kind=kind, count=count) for (phase, kind), count in totals.items())
