"""Stands for an Apple GPU on a machine without one: tensors that say they are on MPS, and a list of the copies made."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

MPS = torch.device("mps")
_CPU = torch.device("cpu")


class FakeMps(TorchFunctionMode):
    """While it is active, `tensor.to("mps")` gives a tensor whose device is MPS and whose numbers the CPU computes."""

    def __init__(self) -> None:
        super().__init__()
        self._there: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.copies: list[tuple[str, bool]] = []
        """(source and target, whether it was requested as asynchronous)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__:
            return MPS if self._is_there(args[0]) else func(*args)
        if func == Tensor.to:
            return self._moved(*args, **kwargs)
        if func == Tensor.cpu:
            return self._moved(args[0], _CPU)
        if func == Tensor.copy_:
            self._note(args[1], self._is_there(args[0]), kwargs.pop("non_blocking", False))
            return func(*args, **kwargs)
        device = kwargs.get("device")
        on_device = self._any_there((args, kwargs)) if device is None else torch.device(device).type == "mps"
        if on_device and device is not None:
            kwargs["device"] = _CPU
        result = func(*args, **kwargs)
        if on_device:
            for leaf in tree_leaves(result):
                self.place(leaf)
        return result

    def place(self, tensor: Any) -> Any:
        """Declares a tensor's storage to be on MPS."""
        if isinstance(tensor, Tensor):
            self._there[tensor.untyped_storage()] = True
        return tensor

    def _moved(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        target, asynchronous = None, kwargs.pop("non_blocking", False)
        args = tuple(torch.device(value) if isinstance(value, str) else value for value in args)
        for value in (*args, kwargs.pop("device", None)):
            target = torch.device(value) if isinstance(value, (str, torch.device)) else target
        was_there = self._is_there(tensor)
        goes_there = was_there if target is None else target.type == "mps"
        rest = [value for value in args if not isinstance(value, torch.device)]
        if was_there != goes_there:
            self._note(tensor, goes_there, asynchronous)
            kwargs["copy"] = True
        result = Tensor.to(tensor, *rest, **kwargs) if rest or "dtype" in kwargs else tensor.clone()
        return self.place(result) if goes_there else result

    def _note(self, source: Tensor, goes_there: bool, asynchronous: bool) -> None:
        if self._is_there(source) != goes_there:
            self.copies.append(("to mps" if goes_there else "to host", asynchronous))

    def _is_there(self, tensor: Any) -> bool:
        with torch._C.DisableTorchFunction():
            return isinstance(tensor, Tensor) and tensor.untyped_storage() in self._there

    def _any_there(self, values: Any) -> bool:
        return any(self._is_there(leaf) for leaf in tree_leaves(values))


@contextmanager
def fake_mps() -> Iterator[FakeMps]:
    with FakeMps() as mode:
        yield mode
