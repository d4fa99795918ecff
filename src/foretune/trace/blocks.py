"""Which repeated block an operator belongs to, in the forward and in the backward pass."""

from bisect import bisect_right
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


class BlockTracker:
    """Knows the block that runs now.

    Forward: hooks around each block. Backward: autograd numbers its nodes as they are made, so the numbers at a block's
    entry and exit tell which block a node came from. A checkpointed block is computed again inside one of its nodes, so
    that counts as the same block.
    """

    def __init__(self, blocks: tuple[nn.Module, ...]) -> None:
        self._current: int | None = None
        self._last_backward: int | None = None
        self._starts: list[int] = []
        self._owners: list[int | None] = []
        self._handles: list[RemovableHandle] = []
        for index, block in enumerate(blocks):
            self._handles.append(block.register_forward_pre_hook(self._entering(index)))
            self._handles.append(block.register_forward_hook(self._left))

    def begin_forward(self) -> None:
        """Forgets the nodes of the pass before."""
        self._starts, self._owners = [0], [None]
        self._current = self._last_backward = None

    def current(self, phase: str) -> int | None:
        if phase != "backward":
            return self._current
        node = torch._C._current_autograd_node()
        if node is not None:
            number = node._sequence_nr()
            # Nodes that add up gradients have the largest number there is; they belong to what ran just before.
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
