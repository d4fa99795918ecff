"""Copies that arrive as late as they may: only when they are waited for. Until then the memory holds NaN."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from foretune.accelerator.copies import fill, is_made_of_others, parts_of
from foretune.accelerator.copy_queues import Arrival, CopiesInTurn, copying_with
from tests.step.small_steps import SmallStep

_NAN_BYTE = 255
"""Of these bytes, fp32, bf16, fp16 and fp8 are NaN."""


@dataclass
class SlowCopies:
    """Implements `CopyQueue`, and records in which order blocks are copied, computed and released.

    `events` holds pairs: "copy", "arrive", "compute" or "release", and the number of a block.
    """

    events: list[tuple[str, int]] = field(default_factory=list)
    released_early: list[int] = field(default_factory=list)
    """Blocks whose memory was released although nothing had waited for the copy."""
    _blocks: dict[int, int] = field(default_factory=dict)
    """Number of the block by address of a weight on the host."""

    @contextmanager
    def copying(self, small: SmallStep) -> Iterator["SlowCopies"]:
        """Serves the swapped blocks of a step that has not run yet."""
        handles = []
        for number, block in enumerate(small.family.blocks(small.step.denoiser)):
            for parameter in block.parameters():
                for part in _plain(parameter):
                    self._blocks[part.data_ptr()] = number
            first = next(module for module in block.modules() if isinstance(module, nn.Linear))
            handles.append(first.register_forward_pre_hook(self._computing(number)))
        with copying_with(lambda _: self):
            yield self
        for handle in handles:
            handle.remove()

    def start(self, rooms: Sequence[Tensor], stored: Sequence[Tensor]) -> Arrival:
        number = self._blocks.get(next(part for tensor in stored for part in _plain(tensor)).data_ptr())
        if number is None:  # activations
            return CopiesInTurn().start(rooms, stored)
        self.events.append(("copy", number))
        late = _Late(self, number, list(stored))
        for room in rooms:
            late.parts.append([_held(part) for part in _plain(room)])
        storage = _storages(rooms[0])[0]
        weakref.finalize(storage, late.released).atexit = False
        return late

    def most_at_once(self) -> int:
        """Returns how many blocks were on the device at the same time."""
        live = most = 0
        for what, _ in self.events:
            live += (what == "copy") - (what == "release")
            most = max(most, live)
        return most

    def order_of(self, what: str) -> list[int]:
        return [number for event, number in self.events if event == what]

    def _computing(self, number: int) -> Any:
        return lambda *_: self.events.append(("compute", number))


class _Late:
    """Holds the memory weakly: whoever drops it releases it."""

    def __init__(self, copies: SlowCopies, number: int, stored: list[Tensor]) -> None:
        self._copies, self._number, self._stored = copies, number, stored
        self.parts: list[list[weakref.ref[torch.UntypedStorage]]] = []
        self._has_arrived = False

    def wait(self) -> None:
        if self._has_arrived:
            return
        self._has_arrived = True
        self._copies.events.append(("arrive", self._number))
        for stored, held in zip(self._stored, self.parts, strict=True):
            for source, reference in zip(_plain(stored), held, strict=True):
                storage = reference()
                assert storage is not None, "the memory of a copy was released before it arrived"
                room = torch.empty(0, dtype=source.dtype).set_(storage, 0, source.size(), source.stride())
                fill(room, source)

    def released(self) -> None:
        self._copies.events.append(("release", self._number))
        if not self._has_arrived:
            self._copies.released_early.append(self._number)


def _plain(tensor: Tensor) -> list[Tensor]:
    """Returns the tensors with their own storage; wrapper subclasses are replaced by their parts."""
    if is_made_of_others(tensor):
        return [part for inner in parts_of(tensor).values() for part in _plain(inner)]
    return [tensor.detach()]


def _storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    return [part.untyped_storage() for part in _plain(tensor)]


def _held(part: Tensor) -> "weakref.ref[torch.UntypedStorage]":
    storage = part.untyped_storage()
    torch.empty(0, dtype=torch.uint8).set_(storage).fill_(_NAN_BYTE)
    return weakref.ref(storage)
