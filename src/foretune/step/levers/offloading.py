"""Activation offload: tensors saved for the backward pass wait in host memory."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.weak import WeakIdKeyDictionary

from foretune.step.host import from_host, is_made_of_others, parts_of, to_host

_smallest_moved_bytes = 4096
"""Smaller storages stay on the device: moving one costs as much as a hundred times its bytes, and saves little."""
_moves_leaves = True
"""Whether saved tensors without a gradient are moved too, such as dropout masks and dequantised weights of the base."""


@contextmanager
def moving_from(num_bytes: int) -> Iterator[None]:
    """Lowers the size limit in this context, so that a small step can stand in for a large one."""
    global _smallest_moved_bytes  # noqa: PLW0603 - shared by all hooks
    before, _smallest_moved_bytes = _smallest_moved_bytes, num_bytes
    try:
        yield
    finally:
        _smallest_moved_bytes = before


@contextmanager
def leaving_leaves() -> Iterator[None]:
    """Leaves saved tensors without a gradient on the device in this context, to predict SimpleTuner."""
    global _moves_leaves  # noqa: PLW0603 - shared by all hooks
    before, _moves_leaves = _moves_leaves, False
    try:
        yield
    finally:
        _moves_leaves = before


@contextmanager
def activations_on_host(denoiser: nn.Module) -> Iterator[None]:
    """Moves the tensors that autograd saves in this context to the host, and back when the backward pass reads them.

    Each storage is moved once and whole, however many views of it are saved, and is back on the device from its first
    use to its last. Weights, buffers and quantised weights stay where they are: they outlive the step. Autograd saves
    nothing inside a checkpointed block, so only the block's inputs are moved.
    """
    lasting = WeakIdKeyDictionary()
    for tensor in _parts((*denoiser.parameters(), *denoiser.buffers())):
        lasting[tensor.untyped_storage()] = True
    # Weak on both sides: storages of activations are freed early, and only what autograd saves holds moved ones.
    moved: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def pack(tensor: Tensor) -> "Tensor | _View":
        if not _is_plain(tensor):
            return tensor.detach()
        storage = tensor.untyped_storage()
        stays = tensor.is_leaf and not _moves_leaves
        if stays or storage in lasting or storage.nbytes() < _smallest_moved_bytes:
            # Detached: a tensor that is saved by its own graph would never be freed.
            return tensor.detach()
        known: weakref.WeakValueDictionary[object, _Moved] = moved.setdefault(storage, weakref.WeakValueDictionary())
        key = (tensor.dtype, tensor._version)
        whole = known.get(key)
        if whole is None:
            whole = known[key] = _Moved(tensor)
        return _View(whole, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def unpack(kept: "Tensor | _View") -> Tensor:
        return kept if isinstance(kept, Tensor) else kept.on_device()

    with saved_tensors_hooks(pack, unpack):
        yield


def offload_attention(block: nn.Module) -> int:
    """Offloads what the attention modules of a block save for the backward pass; returns their number."""
    attentions = [module for module in block.modules() if type(module).__name__.endswith("Attention")]
    for attention in attentions:
        attention.forward = _on_host(attention, attention.forward)
    return len(attentions)


def _on_host(attention: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with activations_on_host(attention):
            return forward(*args, **kwargs)

    return run


class _Moved:
    """A storage in host memory, copied back to the device at its first use."""

    def __init__(self, tensor: Tensor) -> None:
        self._device = tensor.device
        num_elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        self._host: Tensor | None = to_host(tensor.detach().as_strided((num_elements,), (1,), 0))
        self._back: Tensor | None = None

    def on_device(self) -> Tensor:
        if self._back is None:
            assert self._host is not None
            self._back = from_host(self._host, self._device)
            self._host = None
        return self._back


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
