"""The repeated blocks of a step, and the block that an operator belongs to, forward and backward."""

from bisect import bisect_right
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from foretune.choices.checkpointing import units
from foretune.choices.training import Levers
from foretune.core.vocabulary import StepPhase
from foretune.models.family import Family

Unit = tuple[nn.Module, ...]
"""Blocks that repeat as one part of a step: a single block, or the blocks of a checkpointed segment."""


def units_of(family: Family, denoiser: nn.Module, levers: Levers) -> tuple[Unit, ...]:
    """Returns the repeated blocks in execution order; blocks that are recomputed together form one unit."""
    blocks = family.blocks(denoiser)
    stacks = tuple(kind.count for kind in family.block_kinds()) or (len(blocks),)
    return tuple(tuple(blocks[number] for number in unit) for unit in units(stacks, levers))


def kinds_of_units(found: tuple[Unit, ...]) -> tuple[int, ...]:
    """Returns the kind of each unit: units are of one kind if their weights have the same names and shapes."""
    seen: dict[object, int] = {}
    shapes = (
        tuple(tuple((name, tuple(p.shape)) for name, p in block.named_parameters()) for block in unit) for unit in found
    )
    return tuple(seen.setdefault(shape, len(seen)) for shape in shapes)


class BlockTracker:
    """Tracks the block, or unit of blocks, that is running.

    Forward: hooks around each block. Backward: autograd numbers its nodes in order of creation, so the numbers at a
    block's entry and exit show which block a node came from. A checkpointed block is recomputed inside one of its own
    nodes, so recomputation counts as the same block.
    """

    def __init__(self, found: tuple[Unit, ...]) -> None:
        self._current: int | None = None
        self._last_backward: int | None = None
        self._starts: list[int] = []
        self._owners: list[int | None] = []
        self._handles: list[RemovableHandle] = []
        for index, unit in enumerate(found):
            for block in unit:
                self._handles.append(block.register_forward_pre_hook(self._entering(index)))
                self._handles.append(block.register_forward_hook(self._left))

    def begin_forward(self) -> None:
        """Forgets the nodes of the previous pass."""
        self._starts, self._owners = [0], [None]
        self._current = self._last_backward = None

    def current(self, phase: str) -> int | None:
        if phase != StepPhase.BACKWARD:
            return self._current
        node = torch._C._current_autograd_node()
        if node is not None:
            number = node._sequence_nr()
            # Nodes that accumulate gradients have the largest possible number; they belong to what ran just before.
            if number < 2**63 and self._starts:
                self._last_backward = self._owners[max(0, bisect_right(self._starts, number) - 1)]
        return self._last_backward

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _entering(self, index: int) -> Any:
        def enter(*_: Any) -> None:
            self._current = index
            self._mark(index)

        return enter

    def _left(self, *_: Any) -> None:
        self._current = None
        self._mark(None)

    def _mark(self, owner: int | None) -> None:
        self._starts.append(int(torch._C._autograd._get_sequence_nr()))
        self._owners.append(owner)
