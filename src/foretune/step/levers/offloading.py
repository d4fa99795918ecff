"""Activation offload: what the backward pass needs waits in host memory."""

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
"""Smaller storages stay: moving one costs as much time as moving a hundred times its bytes, and saves nothing."""
_moves_leaves = True
"""Saved tensors without a gradient are moved too: masks of dropout, widened weights of a quantised base."""


@contextmanager
def moving_from(num_bytes: int) -> Iterator[None]:
    """Moves storages down to this size meanwhile: for those who look at a small step in the place of a large one."""
    global _smallest_moved_bytes  # noqa: PLW0603 - one for all hooks, wherever they were made
    before, _smallest_moved_bytes = _smallest_moved_bytes, num_bytes
    try:
        yield
    finally:
        _smallest_moved_bytes = before


@contextmanager
def leaving_leaves() -> Iterator[None]:
    """Leaves saved tensors without a gradient on the device meanwhile, as SimpleTuner does: for forecasts of it."""
    global _moves_leaves  # noqa: PLW0603 - one for all hooks, wherever they were made
    before, _moves_leaves = _moves_leaves, False
    try:
        yield
    finally:
        _moves_leaves = before


@contextmanager
def activations_on_host(denoiser: nn.Module) -> Iterator[None]:
    """Moves what autograd keeps meanwhile to the host, and back when the backward pass asks for it.

    Storages are moved whole and once each, however many views of them are kept; a moved one is back on the device from
    its first use to its last. Weights, buffers and quantised weights are where they are anyway and stay. Inside a
    checkpointed block autograd keeps nothing, so that of those only the inputs are moved.
    """
    lasting = WeakIdKeyDictionary()
    for tensor in _parts((*denoiser.parameters(), *denoiser.buffers())):
        lasting[tensor.untyped_storage()] = True
    # Weak on both sides: storages of activations die early, and only what autograd keeps holds what was moved.
    moved: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def pack(tensor: Tensor) -> "Tensor | _View":
        if not _is_plain(tensor):
            return tensor.detach()
        storage = tensor.untyped_storage()
        stays = tensor.is_leaf and not _moves_leaves
        if stays or storage in lasting or storage.nbytes() < _smallest_moved_bytes:
            # Without its graph: a tensor that its own graph keeps would never be freed.
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
    """Makes what the attentions of a block keep for the backward pass wait in host memory; returns how many it has."""
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
    """A storage in host memory; on the device from when it is first asked for."""

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
    """What autograd keeps in the place of a tensor."""

    moved: _Moved
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def on_device(self) -> Tensor:
        return self.moved.on_device().as_strided(self.size, self.stride, self.offset)


def _parts(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Tensors with a storage of their own; of those that are made of others, these."""
    for tensor in tensors:
        if is_made_of_others(tensor):
            yield from _parts(parts_of(tensor).values())
        else:
            yield tensor


def _is_plain(tensor: Tensor) -> bool:
    """Whether its numbers are those of its storage: not made of other tensors, sparse or conjugated when read."""
    return (
        not is_made_of_others(tensor)
        and tensor.layout == torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
    )
