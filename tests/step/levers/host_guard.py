"""Tells on a CPU what a GPU would stumble over: an operator that computes with what waits in host memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from foretune.accelerator.copies import watching_host

_COPIES = ("copy_", "_to_copy", "detach", "alias")


class HostGuard(TorchDispatchMode):
    """Fails where something else than a copy is made of a tensor in host memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._waiting: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.num_made = 0
        self.num_read = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Learns of the tensors that are made in host memory."""

        def note(copy: Tensor) -> None:
            self.num_made += 1
            self._waiting[copy.untyped_storage()] = True

        with watching_host(note):
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        waiting = [
            leaf
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor) and leaf.untyped_storage() in self._waiting
        ]
        assert not waiting or name in _COPIES, f"{name} computes with a tensor in host memory"
        self.num_read += bool(waiting) and name != "detach"
        return func(*args, **(kwargs or {}))
