"""A trace split into lists of storages, with room between them for others."""

from dataclasses import dataclass, field

from foretune.core.values.recipes import Piece
from foretune.core.values.step_trace import MARK, NEVER, BlockKind, Growth, Moment, Powers, StepTrace, Storage, on_host
from foretune.core.vocabulary import MemoryPart

BEFORE, AFTER, ARRIVED = -64, 1, 64
"""Offsets from a position: BEFORE and AFTER surround the events of products, ARRIVED is for gradients in between."""

Terms = tuple[tuple[float, Powers], ...]
"""Terms of a growth, which decide whether two are equal."""
Place = tuple[int, str, int]
"""A list of storages: kind of block (-1: outside all blocks), part of the kind, block of the part."""
OUTSIDE_PLACE: Place = (-1, "outside", 0)


def shifted(moment: Moment, by: int) -> Moment:
    """Returns a moment slightly later or earlier at the same place."""
    return moment._replace(shift=moment.shift + by)


def storages_by_place(trace: StepTrace) -> dict[Place, tuple[Storage, ...]]:
    """Returns all lists of a trace, in the order of the step, storages outside blocks first."""
    found: dict[Place, tuple[Storage, ...]] = {OUTSIDE_PLACE: trace.outside}
    for number, kind in enumerate(trace.kinds):
        for part, blocks in (("first", kind.first), ("middle", (kind.middle,)), ("last", kind.last)):
            found |= {(number, part, index): block for index, block in enumerate(blocks)}
    return found


@dataclass(frozen=True)
class Mark:
    """A place in the step with a marked number."""

    made: Moment
    released: Moment
    what: str
    number: Growth


_NEVER_RELEASED = Moment(phase=NEVER)


@dataclass
class Composer:
    """A trace that is being changed."""

    trace: StepTrace
    lists: dict[Place, list[Storage]] = field(default_factory=dict)
    marks: dict[Place, list["Mark"]] = field(default_factory=dict)
    _growths: dict[Terms, int] = field(init=False)
    _added: list[Growth] = field(default_factory=list)
    _names: list[str] = field(init=False)
    _pieces: dict[tuple[Terms, float], int] = field(default_factory=dict)
    """Cached growths of added pieces: most weights share their shape with another."""

    def __post_init__(self) -> None:
        names, growths = self.trace.categories, self.trace.growths
        is_mark = [name.startswith(MARK) for name in names]
        for place, of in storages_by_place(self.trace).items():
            self.lists[place] = [storage for storage in of if not is_mark[storage.category]]
            self.marks[place] = [
                Mark(s.made, s.released, names[s.category].removeprefix(MARK), growths[s.growth])
                for s in of
                if is_mark[s.category]
            ]
        # Equal growths share the index of the first; those of the trace keep their indices.
        self._growths = {}
        for index, growth in enumerate(self.trace.growths):
            self._growths.setdefault(growth.terms, index)
        self._names = list(names)

    def category(self, storage: Storage) -> str:
        return self._names[storage.category]

    def growth(self, storage: Storage) -> Growth:
        index = storage.growth
        known = len(self.trace.growths)
        return self.trace.growths[index] if index < known else self._added[index - known]

    def storage(self, made: Moment, released: Moment | None, growth: Growth, category: str) -> Storage:
        """Returns a new storage; `released` None means never."""
        return self._storage(made, released, self._index(growth), category)

    def of_piece(
        self,
        piece: Piece,
        number: Growth,
        made: Moment,
        released: Moment | None,
        category: str = MemoryPart.TEMPORARIES,
    ) -> Storage:
        """Returns a storage for a piece of a recipe; `number` is its element count."""
        key = number.terms, piece.bytes_per_number
        if key not in self._pieces:
            self._pieces[key] = self._index(scaled(number, piece.bytes_per_number))
        return self._storage(made, released, self._pieces[key], on_host(category) if piece.is_on_host else category)

    def _index(self, growth: Growth) -> int:
        if growth.terms not in self._growths:
            self._growths[growth.terms] = len(self.trace.growths) + len(self._added)
            self._added.append(growth)
        return self._growths[growth.terms]

    def _storage(self, made: Moment, released: Moment | None, growth: int, category: str) -> Storage:
        if category not in self._names:
            self._names.append(category)
        return Storage(made, _NEVER_RELEASED if released is None else released, growth, self._names.index(category))

    def finished(self, **changes: object) -> StepTrace:
        def blocks(number: int, part: str, count: int) -> tuple[tuple[Storage, ...], ...]:
            return tuple(tuple(self.lists[number, part, index]) for index in range(count))

        def kind(number: int, old: BlockKind) -> BlockKind:
            return BlockKind.model_construct(
                name=old.name,
                count=old.count,
                first=blocks(number, "first", len(old.first)),
                middle=tuple(self.lists[number, "middle", 0]),
                last=blocks(number, "last", len(old.last)),
            )

        return self.trace.model_copy(
            update={
                "outside": tuple(self.lists[OUTSIDE_PLACE]),
                "kinds": tuple(kind(number, old) for number, old in enumerate(self.trace.kinds)),
                "growths": (*self.trace.growths, *self._added),
                "categories": tuple(self._names),
                **changes,
            }
        )


def scaled(growth: Growth, factor: float) -> Growth:
    return Growth.of_all_fields(terms=tuple((value * factor, powers) for value, powers in growth.terms))


def constant(number: float) -> Growth:
    return Growth.of_all_fields(terms=((number, (0, 0, 0, 0)),))
