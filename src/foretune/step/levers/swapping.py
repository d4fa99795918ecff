"""Block swap: frozen weights of some blocks stay in host memory and are on the device only around the time when the
block runs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from foretune.accelerator.copies import lasting_copies, room_for, to_host
from foretune.accelerator.copy_queues import Arrival, CopiesInTurn, CopyQueue, queue_beside
from foretune.choices.swapping import SwapSchedule


class _Copies(NamedTuple):
    """A block's frozen weights on the device."""

    weights: list[nn.Parameter]
    arrival: Arrival


class SwappedBlocks:
    """Blocks whose frozen weights are in host memory.

    Saving, counting and checksums see the host tensors, which are the module's parameters. While a block runs, copies
    on the device replace them. The copies are separate tensors, so what autograd saves of them stays valid after the
    block. Checkpointed blocks save nothing and fetch the weights again when they are recomputed.

    When a block begins, the copies of those that the schedule names next are started, and run beside it. What a
    schedule predicts wrongly costs time only: a block whose weights are missing fetches them, and weights that are not
    needed next are released.
    """

    def __init__(self, blocks: tuple[nn.Module, ...], schedule: SwapSchedule) -> None:
        """`blocks` are those of `schedule.forward`."""
        self._schedule = schedule
        self._blocks = dict(zip(schedule.forward, blocks, strict=True))
        self._forward_uses = {number: use for use, number in enumerate(schedule.forward)}
        self._backward_uses = {number: len(blocks) + use for use, number in enumerate(schedule.backward)}
        self._copies: dict[int, _Copies] = {}
        self._queue: CopyQueue | None = None
        for number, block in self._blocks.items():
            block.forward = self._with_weights(number, block.forward)

    def place(self, denoiser: nn.Module, device: torch.device) -> None:
        """Moves the denoiser to the device, except for the frozen weights of the swapped blocks."""
        taken = [(module, name, weight) for block in self._blocks.values() for module, name, weight in _frozen(block)]
        for module, name, _ in taken:
            module._parameters[name] = None
        denoiser.to(device)
        places = [(module, name) for module, name, _ in taken]
        weights: list[Tensor | None] = [weight for _, _, weight in taken]
        del taken  # the host never holds all of them twice
        for index, stored in lasting_copies(weights, device):
            module, name = places[index]
            module._parameters[name] = nn.Parameter(stored, requires_grad=False)

    def take_to_host(self, device: torch.device) -> None:
        """Does the same for a denoiser that is already on the device, as in a planner."""
        for block in self._blocks.values():
            for module, name, weight in _frozen(block):
                module._parameters[name] = nn.Parameter(to_host(weight, device), requires_grad=False)

    def num_bytes(self) -> int:
        """Returns the bytes of the weights in host memory."""
        return sum(w.numel() * w.element_size() for block in self._blocks.values() for _, _, w in _frozen(block))

    def _with_weights(self, number: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._on_device(number, _device_of(args, kwargs)):
                return forward(*args, **kwargs)

        return run

    @contextmanager
    def _on_device(self, number: int, device: torch.device) -> Iterator[None]:
        ahead = self._ahead(number)
        for other in self._copies.keys() - {number, *ahead}:
            self._release(other)
        for wanted in (number, *ahead):
            if wanted not in self._copies:
                self._copies[wanted] = self._started(wanted, device)
        self._copies[number].arrival.wait()
        frozen = _frozen(self._blocks[number])
        try:
            # No local name refers to a copy: the traceback of an error would keep it in memory.
            for index, (module, name, _) in enumerate(frozen):
                module._parameters[name] = self._copies[number].weights[index]
            yield
        finally:
            for module, name, weight in frozen:
                module._parameters[name] = weight
            if number not in ahead:
                self._release(number)

    def _ahead(self, number: int) -> tuple[int, ...]:
        """Returns the blocks to have on the device after this one."""
        is_recomputed = torch._C._current_graph_task_id() != -1  # as torch.utils.checkpoint finds it out
        use = (self._backward_uses if is_recomputed else self._forward_uses)[number]
        return self._schedule.ahead(use, trains=is_recomputed or torch.is_grad_enabled())

    def _started(self, number: int, device: torch.device) -> _Copies:
        if self._queue is None:
            self._queue = queue_beside(device) if self._schedule.prefetch else CopiesInTurn()
        stored = [weight for _, _, weight in _frozen(self._blocks[number])]
        rooms = [room_for(weight, device) for weight in stored]
        arrival = self._queue.start(rooms, stored)
        return _Copies([nn.Parameter(room, requires_grad=False) for room in rooms], arrival)

    def _release(self, number: int) -> None:
        """Releases a block's copies; those that never arrived are waited for, so that nothing else gets the memory."""
        self._copies[number].arrival.wait()
        del self._copies[number]


def _frozen(block: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    return [
        (module, name, weight)
        for module in block.modules()
        for name, weight in module._parameters.items()
        if weight is not None and not weight.requires_grad
    ]


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value.device
    raise AssertionError("a block is given at least one tensor")
