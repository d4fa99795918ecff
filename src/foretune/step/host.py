"""Tensors in host memory. Every lever that moves something off the device uses these functions.

On a CPU the host is the device. Tensors are copied all the same, so that CPU tests cover the code that runs on GPUs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_watchers: list[Callable[[Tensor], None]] = []
_num_computing = 0


@contextmanager
def watching_host(watch: Callable[[Tensor], None]) -> Iterator[None]:
    """Calls `watch` with every tensor that `to_host` creates in this context, for a planner."""
    _watchers.append(watch)
    try:
        yield
    finally:
        _watchers.remove(watch)


def to_host(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """Returns a copy in host memory, pinned if a GPU will read it, so that the transfer does not block the device.

    `device` is the device that will read it, by default the tensor's own. A wrapper subclass (a quantised weight) is
    copied part by part. The copy of a meta tensor is a meta tensor.
    """
    if is_made_of_others(tensor):
        return _rebuilt(tensor, lambda part: to_host(part, device))
    reader = device or tensor.device
    place = "meta" if tensor.device.type == "meta" else "cpu"
    pinned = reader.type == "cuda" and place == "cpu"
    copy = torch.empty_like(tensor, device=place, pin_memory=pinned, requires_grad=False)
    copy.copy_(tensor.detach(), non_blocking=tensor.device.type == "cuda")
    for watch in _watchers:
        watch(copy)
    return copy


def from_host(stored: Tensor, device: torch.device) -> Tensor:
    """Returns a copy on the device, ordered on its stream: kernels launched later read complete data."""
    if is_made_of_others(stored):
        return _rebuilt(stored, lambda part: from_host(part, device))
    return stored.detach().to(device, non_blocking=True, copy=True)


def room_for(stored: Tensor, device: torch.device) -> Tensor:
    """Returns an empty tensor on the device for a copy of one in host memory, which `fill` makes."""
    if is_made_of_others(stored):
        return _rebuilt(stored, lambda part: room_for(part, device))
    return torch.empty_strided(stored.size(), stored.stride(), dtype=stored.dtype, device=device)


def fill(room: Tensor, stored: Tensor) -> None:
    """Copies a tensor in host memory to its room on the device, on the current stream."""
    if is_made_of_others(stored):
        parts = parts_of(room)
        for name, part in parts_of(stored).items():
            fill(parts[name], part)
    else:
        room.copy_(stored.detach(), non_blocking=True)


def is_made_of_others(tensor: object) -> bool:
    """Whether a tensor wraps several tensors and has no storage itself, like a library's quantised weight."""
    return bool(is_traceable_wrapper_subclass(tensor))


def parts_of(tensor: Any) -> dict[str, Tensor]:
    """Returns the tensors inside a wrapper subclass, by name."""
    names, _ = tensor.__tensor_flatten__()
    return {name: getattr(tensor, name) for name in names}


def _rebuilt(tensor: Any, copied: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns a tensor of the same subclass built from copies of its parts."""
    _, context = tensor.__tensor_flatten__()
    parts = {name: copied(part) for name, part in parts_of(tensor).items()}
    whole: Tensor = type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
    return whole


@contextmanager
def computing_on_host() -> Iterator[None]:
    """Marks all tensors created in this context as host memory, because the CPU computes them."""
    global _num_computing  # noqa: PLW0603 - how deep in such regions this process is
    _num_computing += 1
    try:
        yield
    finally:
        _num_computing -= 1


def is_computing_on_host() -> bool:
    """Whether tensors created now are in host memory, for code that counts it separately."""
    return _num_computing > 0


def wait_for_copies(device: torch.device) -> None:
    """Waits until asynchronous copies to the host are complete and the CPU can read them."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
