"""Block swap: frozen weights of some blocks stay in host memory and are on the device only while the block runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from foretune.step.host import from_host, to_host


class SwappedBlocks:
    """Blocks whose frozen weights are in host memory.

    Saving, counting and checksums see the host tensors, which are the module's parameters. While a block runs, copies
    on the device replace them. The copies are separate tensors, so what autograd saves of them stays valid after the
    block. Checkpointed blocks save nothing and fetch the weights again when they are recomputed. Copies run on the
    device's compute stream and do not overlap with its work.
    """

    def __init__(self, blocks: tuple[nn.Module, ...]) -> None:
        self._blocks = blocks
        for block in blocks:
            block.forward = _with_weights(block, block.forward)

    def place(self, denoiser: nn.Module, device: torch.device) -> None:
        """Moves the denoiser to the device, except for the frozen weights of the swapped blocks."""
        taken = [(module, name, weight) for block in self._blocks for module, name, weight in _frozen(block)]
        for module, name, _ in taken:
            module._parameters[name] = None
        denoiser.to(device)
        while taken:  # one by one, so that the host never holds all of them twice
            module, name, weight = taken.pop()
            module._parameters[name] = nn.Parameter(to_host(weight, device), requires_grad=False)

    def take_to_host(self, device: torch.device) -> None:
        """Does the same for a denoiser that is already on the device, as in a planner."""
        for block in self._blocks:
            for module, name, weight in _frozen(block):
                module._parameters[name] = nn.Parameter(to_host(weight, device), requires_grad=False)

    def num_bytes(self) -> int:
        """Returns the bytes of the weights in host memory."""
        return sum(w.numel() * w.element_size() for block in self._blocks for _, _, w in _frozen(block))


def _with_weights(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _brought(block, _device_of(args, kwargs)):
            return forward(*args, **kwargs)

    return run


@contextmanager
def _brought(block: nn.Module, device: torch.device) -> Iterator[None]:
    frozen = _frozen(block)
    try:
        for module, name, weight in frozen:
            module._parameters[name] = nn.Parameter(from_host(weight, device), requires_grad=False)
        yield
    finally:
        for module, name, weight in frozen:
            module._parameters[name] = weight


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
