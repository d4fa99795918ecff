"""Traces with marks: where gradients arrive, and where frozen weights of linear layers are multiplied.

Marked layers multiply as quantised ones do: each product is one autograd node, which allocates a few storages less than
a dense layer. The growths of the others are known from the trace of the dense step, so two recordings are enough to
assign one of them to each storage. If none matches, all recordings of an ordinary trace are made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretune.choices.experiment import Experiment
from foretune.choices.step_form import StepForm, rank_is_a_size
from foretune.core.values.step_trace import MARK, BlockKind, Growth, StepTrace, Storage
from foretune.core.vocabulary import StepPhase
from foretune.models.family import Family
from foretune.step.methods import METHODS
from foretune.step.precision import PrecisionPolicy
from foretune.step.quantizing.applying import kept_by_default
from foretune.step.quantizing.compute_type import in_compute_type
from foretune.step.training_step import TrainingStep
from foretune.trace.growth import Sizes
from foretune.trace.making import runs_of, with_rank
from foretune.trace.operator_memo import OperatorMemo
from foretune.trace.probing import Probe, probes, shallow
from foretune.trace.program import FEW_BLOCKS, MANY_BLOCKS, BlockRun, Fit, IrregularStep, Program, build_program
from foretune.trace.recorder import Allocation, Recorder
from foretune.trace.shapes import sums_of, trained_shapes
from foretune.trace.timeline import EventPoint, Lifetime, Timeline, owner_of, points_of, timeline
from foretune.trace.tracing import TracedStep, trace_step

Storages = tuple[Storage, ...]
_EXACT = 1e-6
_OTHER_RANK = 8
"""A second rank at which adapter shapes are read, to find the sides that are the rank."""


def make_marked_trace(form: StepForm, family: Family, trace: StepTrace) -> StepTrace:
    """Returns the trace with marks; `trace` is that of the same step without marks."""
    known = tuple(trace.growths)
    try:
        return _made(form.experiment(), family, trace, FEW_BLOCKS, known)
    except _UnknownGrowth:
        pass
    except IrregularStep:
        # As for any trace: a few more blocks if a tensor is passed on across several of them.
        if not family.block_kinds():
            raise
        return _made(form.experiment(), family, trace, MANY_BLOCKS, None)
    try:
        return _made(form.experiment(), family, trace, FEW_BLOCKS, None)
    except IrregularStep:
        if not family.block_kinds():
            raise
        return _made(form.experiment(), family, trace, MANY_BLOCKS, None)


class _UnknownGrowth(IrregularStep):
    """Raised if a storage grows unlike all known ones."""


def _made(
    experiment: Experiment, family: Family, trace: StepTrace, fewest: int, known: tuple[Growth, ...] | None
) -> StepTrace:
    recorded = shallow(family, experiment.levers, fewest)
    asked = probes(recorded, has_rank=rank_is_a_size(experiment.method))
    if known is not None:
        asked = (asked[0], asked[-1])
    seen, memo = [_Seen() for _ in asked], OperatorMemo()
    steps = [_traced(experiment, recorded, probe, one, memo) for probe, one in zip(asked, seen, strict=True)]
    runs = runs_of(family, steps[0], experiment.levers)
    sizes = [probe.in_trace(recorded) for probe in asked]
    lines = [timeline(step) for step in steps]
    if known is not None:
        body = build_program(lines, sizes, runs, fit=_among(known))
    else:
        body = build_program(lines, sizes, runs, per_sample=family.goes_by_samples)
    marks = _mark_program(steps[0], seen[0], lines[0].phases, experiment, recorded, sizes[0], runs)
    shift = len(body.growths), len(body.categories)

    def joined(own: Storages, marked: Storages) -> Storages:
        moved = (mark._replace(growth=mark.growth + shift[0], category=mark.category + shift[1]) for mark in marked)
        return (*own, *moved)

    kinds = tuple(
        BlockKind(
            name=own.name,
            count=own.count,
            first=tuple(map(joined, own.first, marked.first)),
            middle=joined(own.middle, marked.middle),
            last=tuple(map(joined, own.last, marked.last)),
        )
        for own, marked in zip(body.kinds, marks.kinds, strict=True)
    )
    return trace.model_copy(
        update={
            "phases": lines[0].phases,
            "backward_phases": tuple(index for index, name in enumerate(lines[0].phases) if name == StepPhase.BACKWARD),
            "categories": (*body.categories, *(MARK + name for name in marks.categories)),
            "growths": (*body.growths, *marks.growths),
            "outside": joined(body.outside, marks.outside),
            "kinds": kinds,
        }
    )


def _traced(experiment: Experiment, family: Family, probe: Probe, seen: "_Seen", memo: OperatorMemo) -> TracedStep:
    experiment = with_rank(experiment, probe.rank)
    denoiser = family.denoiser_on_meta(METHODS[experiment.method.kind].load_dtype(PrecisionPolicy.of(experiment.train)))
    if experiment.method.kind == "lora":
        _mark_layers(family, denoiser)
    return trace_step(experiment, family, probe.sizes, "cuda", denoiser, memo, seen.watch)


def _among(known: Sequence[Growth]) -> Fit:
    """Returns a fit that selects the one known growth that matches all values."""
    chosen: dict[tuple[float, ...], Growth] = {}

    def fit(sizes: Sequence[Sizes], values: Sequence[float]) -> Growth:
        key = tuple(values)
        if key not in chosen:
            found = [growth for growth in known if all(_is(growth, s, v) for s, v in zip(sizes, key, strict=True))]
            if len(found) != 1:
                raise _UnknownGrowth(f"{list(values)} at {list(sizes)} are {len(found)} of the growths of the trace")
            chosen[key] = found[0]
        return chosen[key]

    return fit


def _is(growth: Growth, sizes: Sizes, value: float) -> bool:
    return abs(growth.at(sizes) - value) <= _EXACT * max(value, 1.0)


def _mark_program(
    traced: TracedStep,
    seen: "_Seen",
    phases: tuple[str, ...],
    experiment: Experiment,
    family: Family,
    sizes: Sizes,
    runs: tuple[BlockRun, ...],
) -> Program:
    shapes = [seen.shapes, trained_shapes(with_rank(experiment, _OTHER_RANK), family)]
    lines = [Timeline(phases, tuple(_marks(traced, seen, found))) for found in shapes]
    return build_program(lines, [sizes, (*sizes[:3], _OTHER_RANK)], runs)


@dataclass
class _Product:
    """A product with a layer's weight, from its first to its last event."""

    layer: "MarkedLinear"
    kind: str
    first: int
    last: int


@dataclass
class _Seen:
    """Observations while the step runs. Events are identified by their index in the recording."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    """Storage of each trained weight."""
    arrivals: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each trained weight, the storage of its gradient and the last event before it was complete."""
    layers: dict["MarkedLinear", int] = field(default_factory=dict)
    products: list[_Product] = field(default_factory=list)

    def watch(self, step: TrainingStep, recorder: Recorder) -> None:
        events = recorder.recording.events
        for name, parameter in step.trained.items():
            self.shapes[name] = tuple(parameter.shape)
            self.weights[name] = recorder.number_of(parameter)
            parameter.register_post_accumulate_grad_hook(self._arrived(name, recorder))
        for module in step.denoiser.modules():
            if isinstance(module, MarkedLinear):
                self.layers[module] = recorder.number_of(module.numbers)
                module.count_events = lambda: len(events)
                module.note = self._note

    def _note(self, layer: "MarkedLinear", kind: str, first: int, last: int) -> None:
        self.products.append(_Product(layer, kind, first, last))

    def _arrived(self, name: str, recorder: Recorder) -> Callable[[Tensor], None]:
        def arrived(parameter: Tensor) -> None:
            assert parameter.grad is not None
            self.arrivals[name] = (recorder.number_of(parameter.grad), len(recorder.recording.events) - 1)

        return arrived


class MarkedLinear(nn.Linear):
    """A dense layer that multiplies as a quantised one does, and reports when."""

    numbers: Tensor
    note: Callable[["MarkedLinear", str, int, int], None]
    count_events: Callable[[], int]

    def __init__(self, dense: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = dense.in_features, dense.out_features
        self.register_parameter("numbers", nn.Parameter(dense.weight.detach(), requires_grad=False))
        self.register_parameter("bias", dense.bias)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.numbers

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = _MarkedProduct.apply(in_compute_type(values), self, self.numbers)  # type: ignore[no-untyped-call]
        return out


class _MarkedProduct(torch.autograd.Function):
    """The product of `step.quantizing.layer`, with a weight that is already dense."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, layer: MarkedLinear, numbers: Tensor) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(numbers)
        first = layer.count_events()
        out = F.linear(values, numbers, layer.bias)
        layer.note(layer, "product", first, layer.count_events() - 1)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (numbers,) = ctx.saved_tensors
        layer = ctx.layer
        first = layer.count_events()
        out = gradients[0] @ numbers
        layer.note(layer, "gradient", first, layer.count_events() - 1)
        return out, None, None


def _mark_layers(family: Family, denoiser: nn.Module) -> None:
    """Marks the layers that are quantised by default."""
    is_kept = kept_by_default(family, denoiser)
    for name, module in list(denoiser.named_modules()):
        if type(module) is nn.Linear and not is_kept(name):
            denoiser.set_submodule(name, MarkedLinear(module))


def _marks(traced: TracedStep, seen: _Seen, shapes: dict[str, tuple[int, ...]]) -> list[Lifetime]:
    """Returns marks as storages whose bytes are the marked numbers."""
    events = traced.recording.events
    _, points = points_of([event.place for event in events])
    made = {e.number: (e, point) for e, point in zip(events, points, strict=True) if isinstance(e, Allocation)}

    def mark(what: str, number: int, start: EventPoint, end: EventPoint | None, owner: int | None) -> Lifetime:
        return Lifetime(start, end, number, what, owner, (number,), what)

    def of_storage(storage: int, numbers: dict[str, int], end: EventPoint | None = None) -> list[Lifetime]:
        event, point = made[storage]
        owner = owner_of(traced, event, point)
        return [mark(what, number, point, end, owner) for what, number in numbers.items()]

    found: list[Lifetime] = []
    for name, storage in seen.weights.items():
        found += of_storage(storage, sums_of(shapes[name]))
        if name in seen.arrivals:
            gradient, before = seen.arrivals[name]
            sums = {f"arrival {what}": number for what, number in sums_of(shapes[name]).items()}
            found += of_storage(gradient, {"arrival": 1, **sums}, points[before])
    for layer, storage in seen.layers.items():
        found += of_storage(storage, {"inputs": layer.in_features, "outputs": layer.out_features})
    for product in seen.products:
        start, end = points[product.first], points[product.last]
        sides = {"inputs": product.layer.in_features, "outputs": product.layer.out_features}
        found += [mark(f"{product.kind} {what}", number, start, end, start.block) for what, number in sides.items()]
    # Blocks are compared entry by entry, so the order matters.
    return sorted(found, key=lambda one: (one.made.phase, one.made.block or 0, one.made.position))
