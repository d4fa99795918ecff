"""Adds the shapes of trained weights to a trace: an optimizer may treat rows and columns separately."""

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from foretune.choices.checkpointing import unit_width
from foretune.choices.experiment import Experiment
from foretune.choices.step_form import rank_is_a_size
from foretune.core.values.step_trace import MARK, NEVER, BlockKind, Growth, StepTrace, Storage
from foretune.core.vocabulary import MemoryPart
from foretune.models.family import Family
from foretune.step.building import attach_method
from foretune.step.methods import METHODS
from foretune.step.precision import PrecisionPolicy
from foretune.step.quantizing import quantize_denoiser
from foretune.trace.growth import fit
from foretune.trace.making import with_rank
from foretune.trace.probing import run_lengths, shallow
from foretune.trace.program import FEW_BLOCKS, MANY_BLOCKS, IrregularStep

Shape = tuple[int, ...]
_BLOCK = re.compile(r"[^\d]*?\.\d+(?=\.)")
"""The block name of a weight: the part up to the first number."""
_RANKS = (4, 8)
"""Two ranks show which sides of an adapter's weights are the rank."""


def sums_of(shape: Shape) -> dict[str, int]:
    """Returns the number of row and column sums of a weight; empty if it has one axis."""
    if len(shape) < 2:  # noqa: PLR2004 - a vector has no rows
        return {}
    return {"rows": prod(shape[:-1]), "columns": prod(shape[:-2]) * shape[-1]}


def trained_shapes(experiment: Experiment, family: Family) -> dict[str, Shape]:
    """Returns the shape of every trained weight, in model order."""
    denoiser = family.denoiser_on_meta(METHODS[experiment.method.kind].load_dtype(PrecisionPolicy.of(experiment.train)))
    quantize_denoiser(experiment.quantize, family, denoiser)
    trained = attach_method(experiment, family, denoiser).trained()
    return {name: tuple(parameter.shape) for name, parameter in trained.items()}


def with_shapes(trace: StepTrace, experiment: Experiment, family: Family) -> StepTrace:
    """Returns the trace with two marks for each trained weight, for its rows and columns.

    Weights are allocated in model order, so a model with as few blocks as were recorded has the shapes of the trace,
    which contains the first and last blocks of each kind. Equal byte counts are checked.
    """
    lists = (trace.outside, *(block for kind in trace.kinds for block in (*kind.first, *kind.last)))
    listed = sorted((s for of in lists for s in _trained(trace, of)), key=lambda storage: storage.made.position)
    by_rank: list[list[tuple[int, ...]]] = [[]]
    for fewest in (FEW_BLOCKS, MANY_BLOCKS):
        recorded = shallow(family, experiment.levers, fewest)
        by_rank = [
            _at_the_ends(trace, trained_shapes(with_rank(experiment, rank), recorded), recorded, experiment)
            for rank in _RANKS
        ]
        if len(by_rank[0]) == len(listed):
            shapes = list(zip(*by_rank, strict=True))
            return _Noting(trace, listed, shapes, has_rank=rank_is_a_size(experiment.method)).done()
    raise IrregularStep(f"the trace has {len(listed)} trained weights, the model {len(by_rank[0])}")


def _at_the_ends(
    trace: StepTrace, shapes: Mapping[str, Shape], recorded: Family, experiment: Experiment
) -> list[Shape]:
    """Returns the shapes without the middle blocks of long runs of equal blocks: a trace contains only the ends."""
    of_block = {name: found.group() for name in shapes if (found := _BLOCK.match(name)) is not None}
    blocks = list(dict.fromkeys(of_block.values()))
    width, lengths = unit_width(experiment.levers), run_lengths(recorded, experiment.levers)
    if len(lengths) != len(trace.kinds) or sum(lengths) * width != len(blocks):
        return list(shapes.values())
    dropped: set[str] = set()
    start = 0
    for length, kind in zip(lengths, trace.kinds, strict=True):
        middle = range(start + len(kind.first), start + length - len(kind.last))
        dropped.update(blocks[unit * width + place] for unit in middle for place in range(width))
        start += length
    return [shape for name, shape in shapes.items() if of_block.get(name) not in dropped]


def _trained(trace: StepTrace, storages: Sequence[Storage]) -> list[Storage]:
    return [
        s for s in storages if trace.categories[s.category] == MemoryPart.TRAINED_WEIGHTS and s.released.phase == NEVER
    ]


class _Noting:
    """Adds marks to the lists of a trace."""

    def __init__(
        self, trace: StepTrace, listed: Sequence[Storage], shapes: Sequence[tuple[Shape, ...]], *, has_rank: bool
    ) -> None:
        self._trace, self._has_rank = trace, has_rank
        self._growths, self._categories = list(trace.growths), list(trace.categories)
        self._shapes = {storage.made.position: of for storage, of in zip(listed, shapes, strict=True)}
        for storage, of in zip(listed, shapes, strict=True):
            per_number = trace.growths[storage.growth].at((1, 1, 1, _RANKS[0])) / prod(of[0])
            if round(per_number, 6) not in (2.0, 4.0):
                raise IrregularStep(f"a trained weight of {of[0]} has {per_number:g} bytes a number")

    def done(self) -> StepTrace:
        kinds = tuple(
            BlockKind(
                name=kind.name,
                count=kind.count,
                first=tuple(map(self._noted, kind.first)),
                # Middle blocks have no position themselves: they have the shapes of the second block.
                middle=self._noted(kind.middle, kind.first[1]) if kind.middle else (),
                last=tuple(map(self._noted, kind.last)),
            )
            for kind in self._trace.kinds
        )
        outside = self._noted(self._trace.outside)
        return self._trace.model_copy(
            update={
                "outside": outside,
                "kinds": kinds,
                "growths": tuple(self._growths),
                "categories": tuple(self._categories),
            }
        )

    def _noted(self, storages: tuple[Storage, ...], like: tuple[Storage, ...] | None = None) -> tuple[Storage, ...]:
        own = _trained(self._trace, storages)
        marks = []
        for storage, other in zip(own, _trained(self._trace, like) if like is not None else own, strict=True):
            sums = [sums_of(shape) for shape in self._shapes[other.made.position]]
            for what in sums[0]:
                values = [float(one[what]) for one in sums]
                sizes = [(1, 1, 1, rank) for rank in _RANKS]
                growth = fit(sizes, values) if self._has_rank else Growth(terms=((values[0], (0, 0, 0, 0)),))
                marks.append(
                    Storage(
                        made=storage.made,
                        released=storage.released,
                        growth=_index(self._growths, growth),
                        category=_index(self._categories, MARK + what),
                    )
                )
        return (*storages, *marks)


def _index(values: list[Any], value: object) -> int:
    if value not in values:
        values.append(value)
    return values.index(value)
