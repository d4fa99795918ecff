"""Tensors that wait in host memory. Every lever that moves something off the device goes through here.

On a CPU the host is the device; tensors are copied all the same, so that what is tested there is what runs elsewhere.
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
    """Tells `watch` of every tensor that is made in host memory meanwhile: a planner counts them apart."""
    _watchers.append(watch)
    try:
        yield
    finally:
        _watchers.remove(watch)


def to_host(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """A copy in host memory, page-locked where a GPU will read it, so that the copy does not hold up the device.

    `device` is where it will be read; left out, where the tensor is. A tensor made of others (a quantised weight) is
    copied part by part. Of a tensor that has shapes only, so has the copy.
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
    """A copy on the device, in the order of its work: what is computed there next finds it complete."""
    if is_made_of_others(stored):
        return _rebuilt(stored, lambda part: from_host(part, device))
    return stored.detach().to(device, non_blocking=True, copy=True)


def is_made_of_others(tensor: object) -> bool:
    """Whether it stands for several tensors and has no storage of its own, as a library's quantised weight."""
    return bool(is_traceable_wrapper_subclass(tensor))


def parts_of(tensor: Any) -> dict[str, Tensor]:
    """The tensors that one stands for, by name."""
    names, _ = tensor.__tensor_flatten__()
    return {name: getattr(tensor, name) for name in names}


def _rebuilt(tensor: Any, copied: Callable[[Tensor], Tensor]) -> Tensor:
    """The same kind of tensor, made of copies of its parts."""
    _, context = tensor.__tensor_flatten__()
    parts = {name: copied(part) for name, part in parts_of(tensor).items()}
    whole: Tensor = type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
    return whole


@contextmanager
def computing_on_host() -> Iterator[None]:
    """All tensors that are made meanwhile are the host's: its CPU computes."""
    global _num_computing  # noqa: PLW0603 - how deep in such regions this process is
    _num_computing += 1
    try:
        yield
    finally:
        _num_computing -= 1


def is_computing_on_host() -> bool:
    """Whether what is made now is the host's, for those who count it apart."""
    return _num_computing > 0


def wait_for_copies(device: torch.device) -> None:
    """Copies to the host are made in the background; before its CPU reads them, they must be there."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
