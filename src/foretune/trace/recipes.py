"""Records what optimizers and quantised layers do with a weight, without a model."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from foretune.accelerator.copies import watching_host
from foretune.choices.optimizers import OPTIMIZER_SPECS
from foretune.choices.step_form import update_name
from foretune.choices.training import Levers, Optimizer
from foretune.core.values.recipes import (
    Act,
    Count,
    LayerRecipe,
    Piece,
    Recipes,
    RecipeSection,
    UpdateRecipe,
    WeightUpdate,
)
from foretune.core.vocabulary import StepPhase
from foretune.step.optimizing import build_optimizer
from foretune.step.quantizing.applying import BACKENDS
from foretune.step.quantizing.float8_products import as_on_gpus
from foretune.trace.fake_model import materialise
from foretune.trace.optimizer_ops import AssumedNumbers, assume_large_weights
from foretune.trace.program import IrregularStep
from foretune.trace.recorder import Allocation, Recorder, Recording

LAYERS = ("int8", "float8", "float8-dynamic", "nf4", "int8-bnb")
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_SCALE_BLOCK = 256
_LAST = 2
"""Index of the last of three weights."""
# Three weights each, with distinct element counts, so that a storage's size identifies its weight.
_SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "vector": ((22528,), (27648,), (46592,)),
    "matrix": ((128, 176), (144, 192), (208, 224)),
    "small_vector": ((2304,), (3840,), (1792,)),
    "small_matrix": ((36, 64), (40, 96), (32, 56)),
}
_MANY_AXES = ((32, 48, 3, 5), (48, 64, 3, 5), (56, 96, 3, 5))
_GRADIENT = Piece(count="weights", bytes_per_number=0)


def record_recipes(names: Collection[str]) -> Recipes:
    """Records the recipes of these names; `recipe_names` has all of them."""
    updates = {
        name: _update(choice, dtype, on_host=on_host)
        for name, (choice, dtype, on_host) in _updates().items()
        if name in names
    }
    with as_on_gpus():
        layers = {kind: _layer(kind) for kind in LAYERS if kind in names}
    return Recipes(updates=updates, layers=layers)


def _updates() -> dict[str, tuple[Optimizer, torch.dtype, bool]]:
    """Returns by name the optimizer, the dtype of the weights, and whether it runs on the host."""
    found = {}
    for weights, dtype in _DTYPES.items():
        for kind, spec in OPTIMIZER_SPECS.items():
            for on_host in (False,) if spec.is_paged else (False, True):
                found[update_name(kind, "none", weights, on_host=on_host)] = (Optimizer(kind=kind), dtype, on_host)
    for compensation in ("kahan", "stochastic"):
        choice = Optimizer(compensation=compensation)
        found[update_name("adamw", compensation, "bf16", on_host=False)] = (choice, torch.bfloat16, False)
    return found


def recipe_names() -> tuple[str, ...]:
    """Of every optimizer, for both types of weights, on device and host, and of every quantised layer."""
    return (*_updates(), *LAYERS)


# ---- optimizers


def _update(choice: Optimizer, dtype: torch.dtype, *, on_host: bool = False) -> UpdateRecipe:
    levers = Levers(optimizer_offload=on_host)
    found = {name: _of_weight(choice, levers, dtype, shapes) for name, shapes in _SHAPES.items()}
    if _of_weight(choice, levers, dtype, _MANY_AXES) != found["matrix"]:
        raise IrregularStep(f"{choice.kind} treats weights of four axes unlike those of two")
    recording = _run(choice, levers, dtype, _SHAPES["matrix"])
    moved: dict[str, float] = {}
    num_weights = sum(prod(shape) for shape in _SHAPES["matrix"])
    for operation in recording.operations:
        name = operation[0]
        moved[name] = moved.get(name, 0.0) + operation[1] / num_weights
    # Scalars are moved too, but do not grow with the weights.
    bytes_moved = {name: round(value * 4) / 4 for name, value in moved.items()}
    return UpdateRecipe(**found, bytes_moved={name: value for name, value in bytes_moved.items() if value})


@dataclass
class _Run:
    """The events of an update: storage, whether it is allocated, its label and piece."""

    events: list[tuple[int, bool]] = field(default_factory=list)
    labels: dict[int, int] = field(default_factory=dict)
    pieces: dict[int, Piece] = field(default_factory=dict)
    states: list[list[Piece]] = field(default_factory=list)
    operations: list[tuple[str, int]] = field(default_factory=list)


def _of_weight(
    choice: Optimizer, levers: Levers, dtype: torch.dtype, shapes: Sequence[tuple[int, ...]]
) -> WeightUpdate:
    among = _run(choice, levers, dtype, shapes)
    alone = _run(choice, levers.model_copy(update={"fused_backward": True}), dtype, shapes[1:2])
    if any(states != among.states[0] for states in among.states):
        raise IrregularStep(f"{choice.kind} keeps unlike states of like weights")
    pieces, sections = _sections(among)
    own = {number: index for index, number in enumerate(alone.pieces)}
    return WeightUpdate(
        states=tuple(among.states[0]),
        pieces=pieces,
        sections=sections,
        pieces_alone=tuple(alone.pieces.values()),
        alone=tuple(Act(piece=own[number], is_release=not is_made) for number, is_made in alone.events),
    )


def _run(choice: Optimizer, levers: Levers, dtype: torch.dtype, shapes: Sequence[tuple[int, ...]]) -> _Run:
    """Records one update in steady state, as in a training step, without scalars."""
    recorder = Recorder(lambda _: None, tells_host=True)
    choice = choice.model_copy(update={"lr": choice.spec.lr_or(choice.lr)})
    with FakeTensorMode(allow_non_fake_inputs=True), recorder, watching_host(recorder.moved_to_host), AssumedNumbers():
        weights = [nn.Parameter(torch.empty(shape, dtype=dtype)) for shape in shapes]
        plain = levers.model_copy(update={"fused_backward": False})
        optimizer = build_optimizer(choice, weights, foreach=True, levers=plain)
        if prod(shapes[0]) >= min(prod(shape) for shape in _SHAPES["matrix"]):
            assume_large_weights(optimizer)
        gradients: list[int] = []
        starts = (0, 0)
        for _ in range(2):
            recorder.phase = StepPhase.BACKWARD
            for weight in weights:
                weight.grad = torch.empty_like(weight)
            gradients = [recorder.number_of(weight.grad) for weight in weights if weight.grad is not None]
            starts = len(recorder.recording.events), len(recorder.recording.operations)
            recorder.phase = StepPhase.OPTIMIZER
            if not levers.fused_backward:
                nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            recorder.phase = "between"
        states = [[(recorder.number_of(t), t) for t in optimizer.kept(weight)] for weight in weights]
        recording = recorder.finish()
    run = _Run(labels={number: index for index, number in enumerate(gradients)})
    run.pieces = dict.fromkeys(gradients, _GRADIENT)
    run.states = [
        [_state(_counts(shape), t, is_on_host=number in recorder.on_host) for number, t in of]
        for shape, of in zip(shapes, states, strict=True)
    ]
    counts, outer = [_counts(shape) for shape in shapes], [prod(shape[:-2]) for shape in shapes]
    for event in recording.events[starts[0] :]:
        if event.place.phase != StepPhase.OPTIMIZER:
            continue
        if isinstance(event, Allocation):
            _note(run, event, counts, outer, is_on_host=event.number in recorder.on_host)
        elif event.number in run.pieces:
            run.events.append((event.number, False))
    run.operations = [
        (operation.kind, operation.num_bytes_moved)
        for operation in recording.operations[starts[1] :]
        if operation.place.phase == StepPhase.OPTIMIZER
    ]
    return run


def _note(
    run: _Run, event: Allocation, counts: list[dict[Count, float]], outer: list[int], *, is_on_host: bool
) -> None:
    """`outer` is the number of matrices in each weight with more than two axes: their means are scalars."""
    num_numbers = prod(event.shape)
    if num_numbers <= 1 or event.operator == "stack":
        return
    labels = [event.result] if event.num_results == len(counts) > 1 else range(len(counts))
    for label in labels:
        piece = _piece(counts[label], num_numbers, event.num_bytes / num_numbers, is_on_host=is_on_host)
        if piece is not None:
            run.labels[event.number], run.pieces[event.number] = label, piece
            run.events.append((event.number, True))
            return
    if num_numbers not in outer:
        raise IrregularStep(f"{event.operator} {event.shape} belongs to none of the weights")


def _counts(shape: tuple[int, ...]) -> dict[Count, float]:
    found: dict[Count, float] = {"weights": prod(shape)}
    if len(shape) > 1:
        found |= {"rows": prod(shape[:-1]), "columns": prod(shape[:-2]) * shape[-1]}
    return found


def _state(counts: dict[Count, float], tensor: Tensor, *, is_on_host: bool) -> Piece:
    piece = _piece(counts, tensor.numel(), tensor.element_size(), is_on_host=is_on_host)
    if piece is None:
        raise IrregularStep(f"a state of {tuple(tensor.shape)} follows from none of {counts}")
    return piece


def _piece(counts: dict[Count, float], num_numbers: int, item_bytes: float, *, is_on_host: bool) -> Piece | None:
    if num_numbers <= 1:
        return Piece(count="one", bytes_per_number=item_bytes, is_on_host=is_on_host)
    for count, number in counts.items():
        if number == num_numbers:
            return Piece(count=count, bytes_per_number=item_bytes, is_on_host=is_on_host)
    if -(-counts["weights"] // _SCALE_BLOCK) == num_numbers:
        return Piece(count="weights", bytes_per_number=item_bytes / _SCALE_BLOCK, is_on_host=is_on_host)
    return None


def _sections(run: _Run) -> tuple[tuple[Piece, ...], tuple[RecipeSection, ...]]:
    """Returns the sections of an update: of three weights, the second shows what each does to its neighbours."""
    rounds = _rounds(run)
    if len(rounds) % 3 or any(label != index % 3 for index, (label, _) in enumerate(rounds)):
        raise IrregularStep(f"weights are not taken in turns: {[label for label, _ in rounds]}")
    pieces: list[Piece] = [_GRADIENT]
    index_of = {number: 0 for number, piece in run.pieces.items() if piece is _GRADIENT}
    sections = []
    for start in range(0, len(rounds), 3):
        three = [events for _, events in rounds[start : start + 3]]
        made = [[number for number, is_made in events if is_made] for events in three]
        if any([run.pieces[n] for n in of] != [run.pieces[n] for n in made[0]] for of in made):
            raise IrregularStep("like weights are updated in unlike ways")
        for of in made:
            index_of |= {number: len(pieces) + offset for offset, number in enumerate(of)}
        pieces += [run.pieces[number] for number in made[0]]
        acts = tuple(
            Act(piece=index_of[number], is_release=not is_made, of_previous=run.labels[number] == 0)
            for number, is_made in three[1]
            if run.labels[number] in (0, 1)
        )
        in_turn = {act.piece for act in acts if act.is_release}
        ended = {index_of[number] for number, is_made in three[2] if not is_made and run.labels[number] == _LAST}
        lingering = {act.piece for act in acts if act.of_previous}
        sections.append(RecipeSection(acts=acts, released_at_end=tuple(sorted((ended - in_turn) | lingering))))
    return tuple(pieces), tuple(sections)


def _rounds(run: _Run) -> list[tuple[int, list[tuple[int, bool]]]]:
    """Groups events from one weight's first storage to the next weight's; releases belong to the preceding group."""
    rounds: list[tuple[int, list[tuple[int, bool]]]] = []
    for number, is_made in run.events:
        if is_made and (not rounds or rounds[-1][0] != run.labels[number]):
            rounds.append((run.labels[number], []))
        if rounds:
            rounds[-1][1].append((number, is_made))
    return rounds


# ---- quantised layers


_LAYER_SIZES = ((512, 1024, 96), (768, 1280, 160))
"""Input features, output features and rows: two of each distinguish counts that grow from constants."""
_MULTIPLES = (1, 2, 4, 8, 16, 32, 64)


def _layer(kind: str) -> LayerRecipe:
    backend = BACKENDS[kind]
    runs = [_layer_run(kind, *sizes) for sizes in _LAYER_SIZES]
    forward, backward = (
        _around_product([run[name] for run in runs]) for name in (StepPhase.FORWARD, StepPhase.BACKWARD)
    )
    side = next(n for n in _MULTIPLES if backend.takes(n, _LAYER_SIZES[0][0]) and backend.takes(_LAYER_SIZES[0][0], n))
    return LayerRecipe(
        bits=tuple(_layer_piece(sizes, items) for sizes, items in _columns([run["bits"] for run in runs])),
        pieces=forward[0],
        before_product=forward[1],
        after_product=forward[2],
        gradient_pieces=backward[0],
        before_gradient=backward[1],
        after_gradient=backward[2],
        side_multiple=side,
        weights_multiple=next(n for n in _MULTIPLES if backend.takes(n * side, side)),
    )


_Numbers = tuple[int, float]
"""Number of elements, and bytes per element."""


def _layer_run(kind: str, num_inputs: int, num_outputs: int, num_rows: int) -> dict[str, list[_Numbers | int]]:
    """Returns allocations (a pair) and releases (an index) of a product and its gradient; the result is (0, 0.0)."""
    layer = BACKENDS[kind].of(nn.Linear(num_inputs, num_outputs, device="meta", dtype=torch.bfloat16))
    recorder = Recorder(lambda _: None)
    with FakeTensorMode(allow_non_fake_inputs=True), recorder:
        materialise(layer)
        values = torch.empty(2, num_rows // 2, num_inputs, dtype=torch.bfloat16, requires_grad=True)
        recorder.phase = StepPhase.FORWARD
        out = layer(values)
        result = recorder.number_of(out)
        recorder.phase = "between"
        gradient = torch.empty_like(out)
        recorder.phase = StepPhase.BACKWARD
        out.backward(gradient)
        assert values.grad is not None
        results = {StepPhase.FORWARD: result, StepPhase.BACKWARD: recorder.number_of(values.grad)}
        bits = [p for name, p in layer.named_parameters() if name != "bias"]
        recording = recorder.finish()
    found: dict[str, list[_Numbers | int]] = {
        phase: _acts(recording, phase, number) for phase, number in results.items()
    }
    found["bits"] = [(p.numel(), p.element_size()) for p in bits]
    return found


def _acts(recording: Recording, phase: str, result: int) -> list[_Numbers | int]:
    acts: list[_Numbers | int] = []
    made: dict[int, int] = {}
    for event in recording.events:
        if event.place.phase != phase:
            continue
        if isinstance(event, Allocation):
            is_result = event.number == result
            made[event.number] = len(acts)
            num_numbers = prod(event.shape)
            acts.append((0, 0.0) if is_result else (num_numbers, event.num_bytes / max(1, num_numbers)))
        elif event.number in made and event.number != result:
            acts.append(made[event.number])
    return acts


def _around_product(runs: list[list[_Numbers | int]]) -> tuple[tuple[Piece, ...], tuple[Act, ...], tuple[Act, ...]]:
    """Returns the pieces, and the events before and after the result is allocated."""
    pieces: list[Piece] = []
    index_of: dict[int, int] = {}
    acts: tuple[list[Act], list[Act]] = ([], [])
    is_after = False
    for place, (sizes, items) in enumerate(_columns(runs)):
        if isinstance(items[0], int):
            if items[0] in index_of:
                acts[is_after].append(Act(piece=index_of[items[0]], is_release=True))
            continue
        if items[0] == (0, 0.0):
            is_after = True
            continue
        if all(item[0] <= 1 for item in items):  # type: ignore[index]
            continue
        index_of[place] = len(pieces)
        acts[is_after].append(Act(piece=len(pieces)))
        pieces.append(_layer_piece(sizes, items))
    return tuple(pieces), tuple(acts[0]), tuple(acts[1])


def _columns(runs: list[list[_Numbers | int]]) -> list[tuple[tuple[tuple[int, int, int], ...], list[_Numbers | int]]]:
    if len({len(run) for run in runs}) != 1:
        raise IrregularStep("a layer does other things at another size")
    return [(_LAYER_SIZES, [run[index] for run in runs]) for index in range(len(runs[0]))]


def _layer_piece(sizes: Sequence[tuple[int, int, int]], items: Sequence[_Numbers | int]) -> Piece:
    numbers = [item[0] for item in items if not isinstance(item, int)]
    item_bytes = next(item[1] for item in items if not isinstance(item, int))
    if len(set(numbers)) == 1:
        return Piece(count="one", bytes_per_number=numbers[0] * item_bytes)
    counts: dict[Count, list[int]] = {
        "weights": [i * o for i, o, _ in sizes],
        "inputs": [i for i, _, _ in sizes],
        "outputs": [o for _, o, _ in sizes],
        "samples": [s for _, _, s in sizes],
        "samples x inputs": [s * i for i, _, s in sizes],
        "samples x outputs": [s * o for _, o, s in sizes],
    }
    for count, of in counts.items():
        # A share of the weights: two packed into one byte, or one scale per block.
        if of == numbers or (count == "weights" and len({n / m for n, m in zip(numbers, of, strict=True)}) == 1):
            return Piece(count=count, bytes_per_number=item_bytes * numbers[0] / of[0])
    raise IrregularStep(f"{numbers} numbers follow from none of {counts}")
