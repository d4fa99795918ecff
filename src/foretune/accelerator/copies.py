"""Copies between host memory and a device. Every lever that moves something off the device uses these functions.

On a CPU the host is the device. Tensors are copied all the same, so that CPU tests cover the code that runs on GPUs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from foretune.accelerator import page_locked
from foretune.accelerator.page_locked import copies_in_background
from foretune.choices.memory_pieces import aligned, page_locked_blocks

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


def copy(target: Tensor, source: Tensor) -> None:
    """Copies between host and device, on the current stream.

    The copy is asynchronous where that is safe: the host's tensor is in page-locked memory, and the device copies in
    the background. Then the host must not read the target, or write to its own tensor, before `copies_issued` has
    arrived. The source may be freed at once: torch reuses page-locked memory only after its copies.
    """
    device, host = (source.device, target) if target.device.type == "cpu" else (target.device, source)
    asynchronous = copies_in_background(device) and page_locked.is_locked(host)
    target.copy_(source.detach(), non_blocking=asynchronous)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns the tensor on the device: itself if it is there, else a copy, made as by `copy`."""
    asynchronous = copies_in_background(device) and page_locked.is_locked(tensor)
    return tensor.to(device, non_blocking=asynchronous)


Copier = Callable[[Tensor, Tensor], object]
"""Copies to its first tensor from its second."""


def to_host(tensor: Tensor, device: torch.device | None = None, copier: Copier = copy) -> Tensor:
    """Returns a copy in host memory, page-locked where this lets the device copy in the background.

    `device` is the device that will read it, by default the tensor's own. A wrapper subclass (a quantised weight) is
    copied part by part. The copy of a meta tensor is a meta tensor. It must be read only after `wait_for_copies`.
    """
    if is_made_of_others(tensor):
        return _rebuilt(tensor, lambda part: to_host(part, device, copier))
    if tensor.device.type == "meta":
        stored = torch.empty_like(tensor, requires_grad=False)
    else:
        stored = page_locked.empty_like(tensor, device or tensor.device)
    copier(stored, tensor)
    for watch in _watchers:
        watch(stored)
    return stored


def lasting_copies(tensors: list[Tensor | None], device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Yields a copy in host memory of each tensor, with its index, and takes the tensors out of the list.

    For copies that stay: where memory is page-locked they share a few large blocks, which torch does not round up as
    it does single tensors. The copies are complete and in any order. `device` is the device that will read them.
    """
    if not copies_in_background(device):
        for index in range(len(tensors)):
            yield index, to_host(_taken(tensors, index), device)
        return
    sizes = [sum(aligned(part.nbytes) for part in _plain(tensor)) for tensor in tensors if tensor is not None]
    for block in page_locked_blocks(sizes):
        memory = page_locked.empty(block.num_bytes, device)
        copies = []
        for index in block.tensors:
            stored, memory = _copied_to_block(_taken(tensors, index), memory)
            copies.append((index, stored))
        wait_for_copies(device)
        for _, stored in copies:
            for watch in _watchers:
                watch(stored)
        del memory
        yield from copies


def _taken(tensors: list[Tensor | None], index: int) -> Tensor:
    tensor, tensors[index] = tensors[index], None
    assert tensor is not None, "each is taken once"
    return tensor


def _copied_to_block(tensor: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Copies a tensor to the beginning of a block; returns the copy and the rest of the block."""

    def laid_out(part: Tensor) -> Tensor:
        nonlocal memory
        like = torch.empty_like(part, device="meta")
        room = memory[: part.nbytes].view(part.dtype).as_strided(like.size(), like.stride())
        memory = memory[aligned(part.nbytes) :]
        copy(room, part)
        return room

    stored = _rebuilt(tensor, laid_out) if is_made_of_others(tensor) else laid_out(tensor.detach())
    return stored, memory


def _plain(tensor: Tensor) -> list[Tensor]:
    """Returns the tensors that have their own storage: the parts of a wrapper subclass, else the tensor."""
    if not is_made_of_others(tensor):
        return [tensor]
    return [plain for part in parts_of(tensor).values() for plain in _plain(part)]


def from_host(stored: Tensor, device: torch.device) -> Tensor:
    """Returns a copy on the device, ordered on its stream: kernels launched later read complete data."""
    if is_made_of_others(stored):
        return _rebuilt(stored, lambda part: from_host(part, device))
    asynchronous = copies_in_background(device) and page_locked.is_locked(stored)
    return stored.detach().to(device, non_blocking=asynchronous, copy=True)


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
        copy(room, stored)


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
    parts = {
        name: _rebuilt(part, copied) if is_made_of_others(part) else copied(part)
        for name, part in parts_of(tensor).items()
    }
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


class CopiesIssued:
    """The copies that were issued on a device's current stream up to now."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.Event | None = None
        if copies_in_background(device):
            self._event = torch.Event(device=device)
            # Without a stream it would be recorded on that of the current device, which may be another one.
            self._event.record(torch.accelerator.current_stream(device))

    def have_arrived(self) -> bool:
        """Returns whether they are complete, without waiting."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Waits until they are complete and the CPU can read them."""
        if self._event is not None:
            self._event.synchronize()


def wait_for_copies(device: torch.device) -> None:
    """Waits until the copies that were issued up to now are complete and the CPU can read them."""
    CopiesIssued(device).wait()


class NumbersToRead:
    """Numbers of a device on their way to the host.

    A device that does not copy in the background is waited for here, so that the host's clock includes its work.
    """

    def __init__(self, values: Sequence[Tensor]) -> None:
        device = values[0].device
        together = torch.stack([value.detach().float() for value in values])
        self._host = together.cpu() if not copies_in_background(device) else to_host(together)
        self._copies = CopiesIssued(device)

    def have_arrived(self) -> bool:
        return self._copies.have_arrived()

    def wait(self) -> None:
        self._copies.wait()

    def read(self) -> list[float]:
        """Returns the numbers; they must have arrived."""
        numbers: list[float] = self._host.tolist()
        return numbers


class PageLockable:
    """A group of tensors that torch's DataLoader moves to page-locked memory."""

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "PageLockable":
        """Returns the group with each tensor replaced."""
        raise NotImplementedError

    def pin_memory(self) -> "PageLockable":
        """Called by the DataLoader, by this name."""
        return self.mapped(lambda tensor: page_locked.locked(tensor, torch.device("cuda")))


def loader_settings(device: torch.device) -> dict[str, Any]:
    """Returns the arguments of a DataLoader whose batches are copied to the device."""
    return {"pin_memory": copies_in_background(device)}
