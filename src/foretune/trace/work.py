"""Adds up what a step's operators do: equal ones together, as functions of the sizes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from foretune.core.values.step_trace import (
    HOST,
    OUTSIDE,
    TO_DEVICE,
    TO_HOST,
    Growth,
    HostOperators,
    Powers,
    Work,
)
from foretune.core.vocabulary import StepPhase
from foretune.trace.growth import IrregularGrowth, Sizes, fit, for_each_sample
from foretune.trace.program import BlockRun, IrregularStep
from foretune.trace.recorder import Operation, Place
from foretune.trace.tracing import TracedStep

# The second of repeated blocks represents all of them: both of its neighbours are of its kind.
_REPRESENTATIVE = 1
_ADDED_UP = frozenset({TO_HOST, TO_DEVICE, HOST})
"""Their time depends on all of their bytes, not on those of one operator."""
_STEP = frozenset(StepPhase)
"""Building the model and making the optimizer's state is done before."""
_ROWS_OF_PRODUCT, _BATCH_OF_ATTENTION = 1, 0


@dataclass(frozen=True)
class _Sort:
    """What equal operators have in common."""

    phase: str
    kind: int
    operator: str
    dtype: str
    is_frozen: bool
    is_masked: bool
    is_recomputed: bool
    shape: tuple[Growth, ...]
    each_moves: Growth | None
    """None where the shape tells."""


@dataclass
class _Total:
    count: int = 0
    flops: dict[Powers, float] = field(default_factory=dict)
    moved: dict[Powers, float] = field(default_factory=dict)


def total_work(
    runs: tuple[BlockRun, ...], steps: Sequence[TracedStep], sizes: Sequence[Sizes], *, per_sample: bool = False
) -> tuple[tuple[Work, ...], tuple[HostOperators, ...]]:
    """Returns the work of equal operators, and the number of operators that the host issues."""
    return _work(runs, steps, _Growths(sizes, per_sample=per_sample)), _host_operators(runs, steps[0])


def work_at_any_size(work: Work, size: Sizes) -> Work:
    """Generalises work of one recording: it is assumed to grow with the samples and their area."""

    def spread(growth: Growth) -> Growth:
        return Growth(terms=((growth.at(size) / size[0] / size[1], (1, 1, 0, 0)),))

    place = _BATCH_OF_ATTENTION if work.operator == "attention" else _ROWS_OF_PRODUCT
    shape = tuple(spread(growth) if index == place else growth for index, growth in enumerate(work.shape))
    return work.model_copy(
        update={"flops": spread(work.flops), "bytes_moved": spread(work.bytes_moved), "shape": shape}
    )


class _Growths:
    """Growths of numbers that were seen at all sizes."""

    def __init__(self, sizes: Sequence[Sizes], *, per_sample: bool) -> None:
        """`per_sample`: recorded with one sample, of a model that computes them one by one."""
        self._sizes, self._per_sample = sizes, per_sample
        self._known: dict[tuple[float, ...], Growth] = {}

    def plain(self, values: Iterable[int]) -> Growth:
        """Of one dimension of one sample."""
        column = tuple(map(float, values))
        if column not in self._known:
            try:
                self._known[column] = fit(self._sizes, column)
            except IrregularGrowth:
                # A dimension that grows in steps, such as padded captions: the largest, as a constant.
                self._known[column] = Growth(terms=((max(column), (0, 0, 0, 0)),))
        return self._known[column]

    def of_all_samples(self, values: Iterable[int]) -> Growth:
        growth = self.plain(values)
        return for_each_sample(growth) if self._per_sample else growth

    def of_shape(self, column: Sequence[Operation]) -> tuple[Growth, ...]:
        """Samples are rows of a product and the batch of attention."""
        dimensions = list(zip(*(operation.shape for operation in column), strict=True))
        grown = [self.plain(dimension) for dimension in dimensions]
        if self._per_sample and grown:
            grown = _with_samples(grown, is_attention=column[0].kind == "attention")
        return tuple(grown)

    def moved(self, column: Sequence[Operation]) -> Growth:
        """Each tensor by itself: weights do not grow with the samples, activations do."""
        total: dict[Powers, float] = {}
        for tensor in zip(*(operation.bytes_by_tensor for operation in column), strict=True):
            _add(total, self.of_all_samples(tensor))
        return _as_growth(total)


def _with_samples(shape: list[Growth], *, is_attention: bool) -> list[Growth]:
    place = _BATCH_OF_ATTENTION if is_attention else _ROWS_OF_PRODUCT
    grows = any(image or text for growth in shape for _, (_, image, text, _) in growth.terms)
    if not grows:
        return shape
    if not is_attention and for_each_sample(shape[place]) == shape[place]:
        # The gradient of a weight is summed over the tokens of all samples.
        return [for_each_sample(growth) for growth in shape]
    terms = tuple((c, (batch + 1, image, text, rank)) for c, (batch, image, text, rank) in shape[place].terms)
    return [Growth(terms=terms) if index == place else growth for index, growth in enumerate(shape)]


def _work(runs: tuple[BlockRun, ...], steps: Sequence[TracedStep], growths: _Growths) -> tuple[Work, ...]:
    totals: dict[_Sort, _Total] = {}
    for column in _aligned(steps):
        first = column[0]
        kind, is_counted = _kind(runs, first.place)
        if not is_counted or first.place.phase not in _STEP:
            continue
        shape, moved = growths.of_shape(column), growths.moved(column)
        sort = _Sort(
            phase=first.place.phase,
            kind=kind,
            operator=first.kind,
            dtype=first.dtype,
            is_frozen=first.is_frozen,
            is_masked=first.is_masked,
            is_recomputed=first.is_recomputed,
            shape=shape,
            each_moves=None if shape or first.kind in _ADDED_UP else moved,
        )
        total = totals.setdefault(sort, _Total())
        total.count += 1
        _add(total.flops, growths.of_all_samples(operation.flops for operation in column))
        _add(total.moved, moved)
    return tuple(
        Work(
            phase=sort.phase,
            kind=sort.kind,
            operator=sort.operator,
            dtype=sort.dtype,
            count=total.count,
            flops=_as_growth(total.flops),
            bytes_moved=_as_growth(total.moved),
            shape=sort.shape,
            is_frozen=sort.is_frozen,
            is_masked=sort.is_masked,
            is_recomputed=sort.is_recomputed,
        )
        for sort, total in totals.items()
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


def _add(total: dict[Powers, float], growth: Growth) -> None:
    for coefficient, powers in growth.terms:
        total[powers] = total.get(powers, 0.0) + coefficient


def _as_growth(total: dict[Powers, float]) -> Growth:
    return Growth(terms=tuple((value, powers) for powers, value in sorted(total.items()) if value))


def _host_operators(runs: tuple[BlockRun, ...], step: TracedStep) -> tuple[HostOperators, ...]:
    totals: Counter[tuple[str, int, bool]] = Counter()
    for (place, is_recomputed), count in step.recording.num_dispatched.items():
        kind, is_counted = _kind(runs, place)
        if is_counted and place.phase in _STEP:
            totals[place.phase, kind, is_recomputed] += count
    return tuple(
        HostOperators(phase=phase, kind=kind, count=count, is_recomputed=is_recomputed)
        for (phase, kind, is_recomputed), count in totals.items()
    )
