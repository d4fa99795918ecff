"""Replaces the optimizer that a trace was recorded with.

This is exact because the update is the last part of a step, and its allocations follow from the shapes and order of the
trained weights. Scalars are left out: norms, counters, means.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from foretune.choices.experiment import Experiment
from foretune.choices.step_form import update_name
from foretune.core.values.recipes import Count, Piece, RecipeSection, UpdateRecipe, WeightUpdate
from foretune.core.values.step_trace import (
    NEVER,
    OUTSIDE,
    STATE_8BIT,
    STATE_8BIT_SCALES,
    Growth,
    Moment,
    Storage,
    Work,
    is_optimizer_state,
)
from foretune.core.vocabulary import MemoryPart, StepPhase
from foretune.planner.composing.pieces import ARRIVED, OUTSIDE_PLACE, Composer, Place, Terms, constant, scaled, shifted
from foretune.trace.shipped import recipes

_SMALL_WEIGHTS = 4096
"""Below this number of elements, 8-bit optimizers store fp32 states (`step.optimizers.eight_bit`)."""
_SUMS: tuple[Count, ...] = ("rows", "columns")


@dataclass(frozen=True)
class TrainedWeight:
    """One trained tensor, or the representative of those of all middle blocks."""

    place: Place
    made: Moment
    counts: dict[Count, Growth]
    update: WeightUpdate


MomentKey = tuple[int | str, ...]
"""A hashable moment."""


class OptimizerReplacement:
    """Removes one optimizer from a trace and inserts another."""

    def __init__(self, composer: Composer, recipe: UpdateRecipe, *, bytes_per_weight: int, is_full: bool) -> None:
        """`is_full`: weights are trained at their own size. Adapters grow with their rank: their updates are those of
        large weights. Plans decide at the requested rank which state is in 8 bits.
        """
        self._composer, self._recipe = composer, recipe
        self._bytes_per_weight, self._is_full = bytes_per_weight, is_full
        self._phase = composer.trace.phases.index(StepPhase.OPTIMIZER)
        self._position = 0
        self.weights = list(self._trained())
        knows_shapes = any(len(weight.counts) > 1 for weight in self.weights)
        assert knows_shapes or recipe.matrix == recipe.vector, "this optimizer treats weights by their shapes"

    def take_out(self) -> None:
        """Removes the old optimizer's states and all allocations of its phase."""
        for storages in self._composer.lists.values():
            storages[:] = [
                storage
                for storage in storages
                if storage.made.phase != self._phase and not is_optimizer_state(self._composer.category(storage))
            ]

    def put_in_states(self) -> None:
        for weight in self.weights:
            for piece in weight.update.states:
                state = self._composer.of_piece(
                    piece, _number(weight, piece), _after_all(weight.made), None, _state_category(piece)
                )
                self._composer.lists[weight.place].append(state)

    def put_in_update(self) -> None:
        """Inserts the update after the backward pass: gradients live until they are used, or to the end."""
        listed = sorted(
            (weight for weight in self.weights if weight.place[1] != "middle"), key=lambda weight: weight.made.position
        )
        made: list[dict[int, Moment]] = [{} for _ in listed]
        released: list[dict[int, Moment]] = [{} for _ in listed]
        for section in range(max((len(weight.update.sections) for weight in listed), default=0)):
            for index, weight in enumerate(listed):
                before = listed[index - 1].update.sections[section] if index else None
                lingering = iter(_lingering(before)) if before is not None else iter(())
                for act in weight.update.sections[section].acts:
                    if not act.of_previous:
                        (released if act.is_release else made)[index][act.piece] = self._next()
                    elif (piece := next(lingering, None)) is not None:
                        released[index - 1][piece] = self._next()
            for index, weight in enumerate(listed):
                for piece in weight.update.sections[section].released_at_end:
                    released[index].setdefault(piece, self._next())
        end = self._next()
        for index, weight in enumerate(listed):
            in_turn = _in_turn(weight.update)
            for piece, moment in made[index].items():
                place = OUTSIDE_PLACE if piece in in_turn else weight.place
                self._add(weight, piece, place, moment, released[index].get(piece, end))
        # Middle blocks do what the second one does; a temporary for one weight at a time exists once.
        order = {id(weight): index for index, weight in enumerate(listed)}
        for weight, like in self._middle():
            in_turn, index = _in_turn(weight.update), order[id(like)]
            for piece, moment in made[index].items():
                if piece not in in_turn:
                    self._add(weight, piece, weight.place, moment, released[index].get(piece, end))
        self._release_gradients(end)

    def put_in_backward(self) -> None:
        """Inserts updates into the backward pass: each weight is updated and its gradient freed when it is complete.

        This is exact because the update of a weight needs only the weight, its states and its gradient. If a trace has
        no marks of arrivals, a gradient is assumed to be used before the next allocation that is not a gradient.
        """
        for place, storages in self._composer.lists.items():
            arrivals = {_key(mark.made): mark for mark in self._composer.marks[place] if mark.what == "arrival"}
            sums: dict[MomentKey, dict[Count, Growth]] = {}
            for mark in self._composer.marks[place]:
                if mark.what == "arrival rows":
                    sums.setdefault(_key(mark.made), {})["rows"] = mark.number
                elif mark.what == "arrival columns":
                    sums.setdefault(_key(mark.made), {})["columns"] = mark.number
            others: dict[MomentKey, list[int]] = {}
            for storage in storages:
                if self._composer.category(storage) != MemoryPart.GRADIENTS:
                    others.setdefault(_key(storage.made)[:4], []).append(storage.made.position)
            for number, storage in enumerate(list(storages)):
                if self._composer.category(storage) == MemoryPart.GRADIENTS:
                    key = _key(storage.made)
                    arrived = arrivals[key].released if key in arrivals else _before_next(storage.made, others)
                    shape = sums[key] if key in sums else self._sums_of_like(storage, place)
                    storages[number] = self._used_at_once(storage, place, arrived, shape)

    @cached_property
    def _weights_by_size(self) -> dict[Terms, list["TrainedWeight"]]:
        found: dict[Terms, list[TrainedWeight]] = {}
        for weight in self.weights:
            found.setdefault(weight.counts["weights"].terms, []).append(weight)
        return found

    def _sums_of_like(self, gradient: Storage, place: Place) -> dict[Count, Growth]:
        """Returns rows and columns of a weight with the same number of elements, preferably in the same block."""
        numbers = scaled(self._composer.growth(gradient), 1 / self._bytes_per_weight)
        nearest = min(self._weights_by_size[numbers.terms], key=lambda weight: weight.place != place)
        return {count: number for count, number in nearest.counts.items() if count != "weights"}

    def _used_at_once(self, gradient: Storage, place: Place, arrived: Moment, sums: dict[Count, Growth]) -> Storage:
        composer = self._composer
        weights = scaled(composer.growth(gradient), 1 / self._bytes_per_weight)
        update = self._update_of(weights, has_rows=bool(sums))
        weight = TrainedWeight(place, gradient.made, {"weights": weights, **sums}, update)
        made: dict[int, Moment] = {}
        released: dict[int, Moment] = {}
        for place_in_turn, act in enumerate(update.alone):
            moments = released if act.is_release else made
            moments[act.piece] = shifted(arrived, ARRIVED + place_in_turn)
        end = shifted(arrived, ARRIVED + len(update.alone))
        for piece, moment in made.items():
            recipe = update.pieces_alone[piece]
            composer.lists[place].append(
                composer.of_piece(recipe, _number(weight, recipe), moment, released.get(piece, end))
            )
        return composer.storage(gradient.made, released.get(0, end), composer.growth(gradient), MemoryPart.TEMPORARIES)

    def work(self, phase: str) -> tuple[Work, ...]:
        """Returns the trace's work with that of the new update, which runs in `phase`, instead of the old one's."""
        trace = self._composer.trace
        kept = [work for work in trace.work if work.phase != StepPhase.OPTIMIZER]
        totals: dict[int, list[Growth]] = {}
        for weight in self.weights:
            kind, part, index = weight.place
            is_counted = kind == OUTSIDE or not trace.kinds[kind].middle or (part, index) == ("middle", 0)
            if is_counted:
                owner = kind if kind != OUTSIDE and trace.kinds[kind].middle else OUTSIDE
                totals.setdefault(owner, []).append(weight.counts["weights"])
        for operator, num_bytes in self._recipe.bytes_moved.items():
            for kind, growths in totals.items():
                moved = _sum(scaled(growth, num_bytes) for growth in growths)
                kept.append(
                    Work(
                        phase=phase,
                        kind=kind,
                        operator=operator,
                        dtype="float32",
                        count=len(growths),
                        flops=constant(0),
                        bytes_moved=moved,
                    )
                )
        return tuple(kept)

    def _trained(self) -> Iterator[TrainedWeight]:
        composer = self._composer
        for place, storages in composer.lists.items():
            shapes: dict[int, dict[Count, Growth]] = {}
            for mark in composer.marks[place]:
                for what in _SUMS:
                    if mark.what == what:
                        shapes.setdefault(mark.made.position, {})[what] = mark.number
            for storage in storages:
                if composer.category(storage) == MemoryPart.TRAINED_WEIGHTS and storage.released.phase == NEVER:
                    counts = shapes.get(storage.made.position, {})
                    weights = scaled(composer.growth(storage), 1 / self._bytes_per_weight)
                    update = self._update_of(weights, has_rows=bool(counts))
                    yield TrainedWeight(place, storage.made, {"weights": weights, **counts}, update)

    def _update_of(self, weights: Growth, *, has_rows: bool) -> WeightUpdate:
        is_small = self._is_full and weights.at((1, 1, 1, 1)) < _SMALL_WEIGHTS
        if is_small:
            return self._recipe.small_matrix if has_rows else self._recipe.small_vector
        return self._recipe.matrix if has_rows else self._recipe.vector

    def _add(self, weight: TrainedWeight, piece: int, place: Place, made: Moment, released: Moment) -> None:
        recipe = weight.update.pieces[piece]
        self._composer.lists[place].append(self._composer.of_piece(recipe, _number(weight, recipe), made, released))

    def _middle(self) -> Iterator[tuple[TrainedWeight, TrainedWeight]]:
        """Yields the weights of the middle blocks, each with that of the second block."""
        by_place: dict[Place, list[TrainedWeight]] = {}
        for weight in self.weights:
            by_place.setdefault(weight.place, []).append(weight)
        for place, middle in by_place.items():
            if place[1] == "middle":
                yield from zip(middle, by_place[place[0], "first", 1], strict=True)

    def _release_gradients(self, end: Moment) -> None:
        for storages in self._composer.lists.values():
            for number, storage in enumerate(storages):
                if storage.released.phase == self._phase and storage.made.phase != self._phase:
                    storages[number] = storage._replace(released=end)

    def _next(self) -> Moment:
        self._position += 1
        return Moment(phase=self._phase, position=self._position)


def state_bytes_per_weight(experiment: Experiment) -> float:
    """Returns the device bytes of optimizer state per trained weight, by the recipe; 0 if there is none."""
    optimizer, train = experiment.optimizer, experiment.train
    name = update_name(
        optimizer.kind, optimizer.compensation, train.weight_dtype, on_host=experiment.levers.optimizer_offload
    )
    recipe = recipes().updates.get(name)
    if recipe is None:
        return 0.0
    return sum(
        piece.bytes_per_number for piece in recipe.matrix.states if piece.count == "weights" and not piece.is_on_host
    )


def _lingering(section: RecipeSection) -> list[int]:
    """Returns the pieces that the next weight's turn releases, in order of release."""
    return [act.piece for act in section.acts if act.of_previous]


def _in_turn(update: WeightUpdate) -> frozenset[int]:
    """Returns the pieces that are freed, at the latest, when the next weight has its turn."""
    found: set[int] = set()
    for section in update.sections:
        made = {act.piece for act in section.acts if not act.is_release}
        found |= made & {act.piece for act in section.acts if act.is_release}
    return frozenset(found)


def _number(weight: TrainedWeight, piece: Piece) -> Growth:
    return constant(1) if piece.count == "one" else weight.counts[piece.count]


def _state_category(piece: Piece) -> str:
    """Returns the category of a state; 8-bit optimizers decide by a tensor's size, which may grow with the rank."""
    if piece.count != "weights" or piece.bytes_per_number > 1:
        return MemoryPart.OPTIMIZER_STATE
    return STATE_8BIT if piece.bytes_per_number == 1 else STATE_8BIT_SCALES


def _after_all(made: Moment) -> Moment:
    """Returns a moment after all weights, in their order."""
    return Moment(phase=made.phase, position=made.position + (1 << 20))


def _sum(growths: Iterator[Growth]) -> Growth:
    totals: dict[tuple[int, int, int, int], float] = {}
    for growth in growths:
        for value, powers in growth.terms:
            totals[powers] = totals.get(powers, 0.0) + value
    return Growth.of_all_fields(terms=tuple((value, powers) for powers, value in sorted(totals.items())))


def _before_next(made: Moment, positions: dict[MomentKey, list[int]]) -> Moment:
    """Returns the last moment before the next storage is allocated at that place."""
    later = [position for position in positions.get(_key(made)[:4], ()) if position > made.position]
    return made._replace(position=min(later) - 1) if later else made


def _key(moment: Moment) -> MomentKey:
    return moment.phase, moment.block, moment.kind, moment.offset, moment.position
