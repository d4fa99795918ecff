"""Activation offload: tensors saved for the backward pass wait in host memory.

Where the device can, copies run beside computation: the last tensor that left stays on the device until its copy is
complete, and when one is read, the one that was saved before it is copied ahead. So at most one storage more than
needed is on the device, and plans count the largest.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.weak import WeakIdKeyDictionary

from foretune.accelerator.copies import from_host, is_made_of_others, parts_of, room_for, to_host
from foretune.accelerator.copy_queues import Arrival, CopiesInTurn, CopyQueue, queue_beside

_smallest_moved_bytes = 4096
"""Smaller storages stay on the device: moving one costs as much as a hundred times its bytes, and saves little."""
_batch_size = 1
"""By which the limit is multiplied for tensors of each sample, in a small step that stands in for a large one."""
_moves_leaves = True
"""Whether saved tensors without a gradient are moved too, such as dropout masks and dequantised weights of the base."""


@contextmanager
def moving_from(num_bytes: int, batch_size: int = 1) -> Iterator[None]:
    """Lowers the size limit in this context, so that a small step can stand in for a large one.

    Tensors whose first axis is the batch stay up to `num_bytes` for each sample. Others, such as copies of weights,
    must not stay in one batch and move in another.
    """
    global _smallest_moved_bytes, _batch_size
    before = _smallest_moved_bytes, _batch_size
    _smallest_moved_bytes, _batch_size = num_bytes, batch_size
    try:
        yield
    finally:
        _smallest_moved_bytes, _batch_size = before


def _stays(tensor: Tensor) -> bool:
    is_per_sample = tensor.dim() > 0 and tensor.shape[0] == _batch_size
    return tensor.untyped_storage().nbytes() < _smallest_moved_bytes * (_batch_size if is_per_sample else 1)


@contextmanager
def leaving_leaves() -> Iterator[None]:
    """Leaves saved tensors without a gradient on the device in this context, to predict SimpleTuner."""
    global _moves_leaves  # noqa: PLW0603 - shared by all hooks
    before, _moves_leaves = _moves_leaves, False
    try:
        yield
    finally:
        _moves_leaves = before


class _Copy(NamedTuple):
    """A copy that runs beside computation, and the memory of the device that it needs."""

    moved: "_Moved | None"
    memory: Tensor
    arrival: Arrival
    version: int
    """Of the memory at the start of the copy."""


class Traffic:
    """Copies to the host and back, in the order of their starts."""

    def __init__(self) -> None:
        self._queue: CopyQueue | None = None
        self._leaving: _Copy | None = None
        self._ahead: _Copy | None = None

    def send(self, tensor: Tensor) -> Tensor:
        """Returns a copy in host memory, which `bring` reads."""
        queue = self._beside(tensor.device)
        if queue is None:
            return to_host(tensor)
        self.settle()
        started: list[Arrival] = []
        stored = to_host(tensor, copier=lambda target, source: started.append(queue.start([target], [source])))
        self._leaving = _Copy(None, tensor, started[0], tensor._version)
        return stored

    def bring(self, moved: "_Moved") -> Tensor:
        """Returns the copy on the device, and starts that of the storage that will probably be read next."""
        queue = self._beside(moved.device)
        if queue is None:
            return from_host(moved.stored(), moved.device)
        if self._ahead is None or self._ahead.moved is not moved:
            self.settle()
            self._ahead = _started(queue, moved)
        copy, before = self._ahead, moved.saved_before()
        self._ahead = None if before is None else _started(queue, before)
        copy.arrival.wait()
        return copy.memory

    def settle(self) -> None:
        """Lets computation wait for all copies, and releases the memory that they needed."""
        leaving, ahead = self._leaving, self._ahead
        self._leaving = self._ahead = None
        for copy in (leaving, ahead):
            if copy is not None:
                copy.arrival.wait()
        if leaving is not None and leaving.memory._version != leaving.version:
            raise RuntimeError(
                "a tensor that the backward pass needs was changed in place while it was copied to the host; without "
                "levers.activation_offload autograd would refuse this, too"
            )

    def _beside(self, device: torch.device) -> CopyQueue | None:
        """Returns a queue beside computation; None where the device has none."""
        if self._queue is None:
            self._queue = queue_beside(device)
        return None if isinstance(self._queue, CopiesInTurn) else self._queue


def _started(queue: CopyQueue, moved: "_Moved") -> _Copy:
    stored = moved.stored()
    room = room_for(stored, moved.device)
    return _Copy(moved, room, queue.start([room], [stored]), room._version)


@contextmanager
def activations_on_host(denoiser: nn.Module, traffic: Traffic | None = None) -> Iterator[None]:
    """Moves the tensors that autograd saves in this context to the host, and back when the backward pass reads them.

    Each storage is moved once and whole, however many views of it are saved, and is back on the device from its first
    use to its last. Weights, buffers and quantised weights stay where they are: they outlive the step. Autograd saves
    nothing inside a checkpointed block, so only the block's inputs are moved.
    """
    traffic = Traffic() if traffic is None else traffic
    lasting = WeakIdKeyDictionary()
    for tensor in _parts((*denoiser.parameters(), *denoiser.buffers())):
        lasting[tensor.untyped_storage()] = True
    # Weak on both sides: storages of activations are freed early, and only what autograd saves holds moved ones.
    moved: WeakIdKeyDictionary = WeakIdKeyDictionary()
    order: list[weakref.ref[_Moved]] = []

    def pack(tensor: Tensor) -> "Tensor | _View":
        if not _is_plain(tensor):
            return tensor.detach()
        storage = tensor.untyped_storage()
        stays = tensor.is_leaf and not _moves_leaves
        if stays or storage in lasting or _stays(tensor):
            # Detached: a tensor that is saved by its own graph would never be freed.
            return tensor.detach()
        known: weakref.WeakValueDictionary[object, _Moved] = moved.setdefault(storage, weakref.WeakValueDictionary())
        key = (tensor.dtype, tensor._version)
        whole = known.get(key)
        if whole is None:
            whole = known[key] = _Moved(tensor, traffic, order)
        return _View(whole, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def unpack(kept: "Tensor | _View") -> Tensor:
        return kept if isinstance(kept, Tensor) else kept.on_device()

    traffic.settle()  # what a pass that failed has left
    try:
        with saved_tensors_hooks(pack, unpack):
            yield
    finally:
        traffic.settle()


def offload_attention(block: nn.Module) -> int:
    """Offloads what the attention modules of a block save for the backward pass; returns their number."""
    attentions = [module for module in block.modules() if type(module).__name__.endswith("Attention")]
    for attention in attentions:
        attention.forward = _on_host(attention, attention.forward)
    return len(attentions)


def _on_host(attention: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    traffic = Traffic()

    def run(*args: Any, **kwargs: Any) -> Any:
        with activations_on_host(attention, traffic):
            return forward(*args, **kwargs)

    return run


class _Moved:
    """A storage in host memory, copied back to the device at its first use."""

    def __init__(self, tensor: Tensor, traffic: Traffic, order: "list[weakref.ref[_Moved]]") -> None:
        """`order`: all that were saved before it in this pass; it is appended."""
        self.device = tensor.device
        self._traffic, self._order, self._place = traffic, order, len(order)
        order.append(weakref.ref(self))
        num_elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        self._host: Tensor | None = traffic.send(tensor.detach().as_strided((num_elements,), (1,), 0))
        self._back: Tensor | None = None

    def stored(self) -> Tensor:
        assert self._host is not None, "it is on the device"
        return self._host

    def on_device(self) -> Tensor:
        if self._back is None:
            self._back = self._traffic.bring(self)
            self._host = None
        return self._back

    def saved_before(self) -> "_Moved | None":
        """Returns the last of those saved before it that is still on the host."""
        for place in range(self._place - 1, -1, -1):
            other = self._order[place]()
            if other is not None and other._back is None:
                return other
        return None


@dataclass(frozen=True)
class _View:
    """The object that autograd saves instead of a tensor."""

    moved: _Moved
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def on_device(self) -> Tensor:
        return self.moved.on_device().as_strided(self.size, self.stride, self.offset)


def _parts(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yields tensors with their own storage; wrapper subclasses are replaced by their parts."""
    for tensor in tensors:
        if is_made_of_others(tensor):
            yield from _parts(parts_of(tensor).values())
        else:
            yield tensor


def _is_plain(tensor: Tensor) -> bool:
    """Whether the tensor's values are its storage's: no wrapper subclass, not sparse, not lazily conjugated."""
    return (
        not is_made_of_others(tensor)
        and tensor.layout == torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
    )
