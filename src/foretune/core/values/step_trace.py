"""What one training step allocates, as a program that can be run at any size and depth without the model.

A step of the same model does the same things at every size: only how many bytes each storage has changes, and how many
equal blocks there are. So a trace made once, at small sizes and a few blocks, answers for all of them.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from foretune.core.values.base import Part, Upgrade, Value
from foretune.core.vocabulary import MemoryPart

Size = Literal["batch", "image", "text", "rank"]
SIZES: tuple[Size, ...] = ("batch", "image", "text", "rank")
"""Samples, latent positions of a sample (height x width x frames), text tokens, adapter rank."""

Powers = tuple[int, int, int, int]
"""Of the sizes above, in their order."""

NEVER = -1
"""The phase in which something is released that outlives the step."""
OUTSIDE = -1
"""In the place of a kind of block: none."""
TO_HOST, TO_DEVICE, HOST = "to host", "to device", "host"
"""Operators of work that is not the device's: what goes over the bus, each way, and what the host's CPU computes."""
MARK = "mark: "
"""Begins the category of what is no storage but a place in the step: its bytes are a number that is noted there."""
ROOM = 256
"""Moments that can be inserted between two positions that follow each other."""
_ON_HOST = " on the host"
STATE_8BIT = MemoryPart.OPTIMIZER_STATE + ", 8-bit"
"""Category of state with one byte for each trained weight, as large tensors have it. Small ones have fp32 state."""
STATE_8BIT_SCALES = MemoryPart.OPTIMIZER_STATE + ", 8-bit scales"
"""Category of the scales of such state, whose bytes follow from those of the state."""


def on_host(category: str) -> str:
    """The category of such storages where they are in host memory and the step runs on another device."""
    return category + _ON_HOST


def is_on_host(category: str) -> bool:
    return category.endswith(_ON_HOST)


def off_host(category: str) -> str:
    """The category without the place."""
    return category.removesuffix(_ON_HOST)


def is_optimizer_state(category: str) -> bool:
    return category.startswith(MemoryPart.OPTIMIZER_STATE)


class Growth(Part):
    """A number as a sum of terms, each a coefficient times powers of the sizes."""

    terms: tuple[tuple[float, Powers], ...]

    def at(self, sizes: tuple[float, float, float, float]) -> float:
        total = 0.0
        for coefficient, powers in self.terms:
            product = coefficient
            for size, power in zip(sizes, powers, strict=True):
                if power:
                    product *= size**power
            total += product
        return total


class Moment(NamedTuple):
    """A point in the step: a phase, a block or none, and the place among what happens there.

    Moments and storages are named tuples because a plan makes hundreds of thousands of them.
    """

    phase: int
    """Index into the trace's phases; NEVER for the end of what is not released."""
    block: Literal["none", "own", "from start", "from end"] = "none"
    """none: before the phase's first block. own: counted from the storage's own block."""
    kind: int = 0
    """The kind of block that `from start` and `from end` count in."""
    offset: int = 0
    position: int = 0
    shift: int = 0
    """Between two positions, up to half of `ROOM` either way: where composing inserts what was not recorded."""


class Storage(NamedTuple):
    """One storage: when it is made, when it is released, how many bytes it has, what it is."""

    made: Moment
    released: Moment
    growth: int
    """Index into the trace's growths: its bytes."""
    category: int
    """Index into the trace's categories."""


class BlockKind(Part):
    """Blocks that are equal but for their place: their storages, once for each place that differs."""

    name: str
    count: int
    """How many there are in the model."""
    first: tuple[tuple[Storage, ...], ...]
    """The storages of the first blocks, one list a block."""
    middle: tuple[Storage, ...]
    """Those of every block between the first and the last ones."""
    last: tuple[tuple[Storage, ...], ...]

    def of_block(self, index: int, count: int) -> tuple[Storage, ...]:
        """The storages of one of `count` blocks."""
        if index < len(self.first):
            return self.first[index]
        from_end = count - 1 - index
        return self.last[len(self.last) - 1 - from_end] if from_end < len(self.last) else self.middle


class Work(Part):
    """What equal operators do in one phase, in one block of a kind or outside of the blocks.

    Operators are equal if they have the same shape or, without one, move the same number of bytes.
    """

    phase: str
    kind: int
    """Index into the trace's kinds: the work of one such block; OUTSIDE for what is done once."""
    operator: str
    """matmul, conv, attention or pointwise; TO_HOST, TO_DEVICE or HOST."""
    dtype: str
    count: int
    """How many operators."""
    flops: Growth
    """Of all of them."""
    bytes_moved: Growth
    """Of all of them."""
    shape: tuple[Growth, ...] = ()
    """Of a matmul or a convolution, as products: batch, m, n, k. Of attention: batch, heads, queries, keys, head size.
    Empty for other operators, and in traces of releases that did not record it."""
    is_frozen: bool = False
    """Whether a frozen weight is an operand, which may be quantised."""
    is_masked: bool = False
    """Whether attention has a mask, with which the fastest kernels do not run."""
    is_recomputed: bool = False
    """Whether gradient checkpointing computes it for the second time."""


class HostOperators(Part):
    """How many operators the host issues in one phase, views included, in one block of a kind or outside."""

    phase: str
    kind: int
    count: int
    is_recomputed: bool = False


def _with_rows(trace: dict[str, Any]) -> dict[str, Any]:
    """Version 2 writes moments and storages as lists of their fields."""

    def moment(fields: dict[str, Any]) -> list[Any]:
        return [*fields.values(), 0]

    def storages(listed: list[dict[str, Any]]) -> list[list[Any]]:
        return [[moment(s["made"]), moment(s["released"]), s["growth"], s["category"]] for s in listed]

    kinds = [
        {
            **kind,
            "first": [storages(block) for block in kind["first"]],
            "middle": storages(kind["middle"]),
            "last": [storages(block) for block in kind["last"]],
        }
        for kind in trace["kinds"]
    ]
    return {**trace, "outside": storages(trace["outside"]), "kinds": kinds}


def _without_shapes(trace: dict[str, Any]) -> dict[str, Any]:
    """Version 2 adds up the work of unlike operators of one sort, so it has no shapes."""
    return trace


class StepTrace(Value):
    """Keyed by the numerics it imitates and the sharding layout, not by a device."""

    upgrades: ClassVar[Mapping[int, Upgrade]] = {1: _with_rows, 2: _without_shapes}

    model: str
    method: str
    precision: str
    checkpointing: float
    numerics: Literal["cuda", "cpu"]
    sharding: str = "none"
    phases: tuple[str, ...]
    """In the order they happen; a phase that happens twice stands twice."""
    backward_phases: tuple[int, ...]
    """The phases that go through the blocks from the last to the first."""
    categories: tuple[str, ...]
    growths: tuple[Growth, ...]
    outside: tuple[Storage, ...]
    """Storages that belong to no block."""
    kinds: tuple[BlockKind, ...]
    work: tuple[Work, ...] = ()
    host_operators: tuple[HostOperators, ...] = ()
    made_with: dict[str, str] = Field(description="versions of the packages the trace was made with")
    made_from: str = Field(description="hash of the step's sources and the model's configuration")

    @cached_property
    def frozen_growths(self) -> tuple[tuple[Growth, ...], ...]:
        """The frozen weights of a block of each kind: how the bytes of each storage grow."""
        return tuple(
            tuple(
                self.growths[storage.growth]
                for storage in kind.of_block(0, kind.count)
                if self.categories[storage.category] == MemoryPart.FROZEN_WEIGHTS and storage.released.phase == NEVER
            )
            for kind in self.kinds
        )
