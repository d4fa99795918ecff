"""Values for forward passes that read their inputs, which fake tensors do not have.

Some denoisers read the length of a caption, which tokens are padding or which expert a token goes to. The values are
those of the largest step: every token is valid, and tokens are spread evenly over the experts.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

Arguments = tuple[Any, ...]


class AssumedData(TorchFunctionMode):
    """Active around a forward pass on fake tensors, and again around the recomputation of a checkpointed block: a mode
    is off inside the functions it intercepts, and `backward` is one. It leaves nothing changed.

    For any other read of a value, the fake tensor itself raises an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_true: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        """Number of true elements of masks; masks that are not listed are all true."""
        self._num_choices: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        """For tensors of sampled or ranked indices, the number of possible indices."""
        self._value: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        """The value of tensors whose elements are all known and equal."""
        self._answers: dict[Any, Callable[[Any, Arguments, dict[str, Any]], Any]] = {
            torch.topk: self._topk, Tensor.topk: self._topk,
            Tensor.view: self._same_choices, Tensor.reshape: self._same_choices, Tensor.flatten: self._same_choices,
            Tensor.__eq__: self._equal, Tensor.eq: self._equal, torch.eq: self._equal,
            Tensor.__invert__: self._inverted, torch.logical_not: self._inverted, Tensor.logical_not: self._inverted,
            Tensor.__getitem__: self._indexed, Tensor.__setitem__: self._indexed,
            torch.nonzero: self._nonzero, Tensor.nonzero: self._nonzero,
            torch.all: self._all, Tensor.all: self._all, torch.any: self._any, Tensor.any: self._any,
            torch.sum: self._sum, Tensor.sum: self._sum, Tensor.unbind: self._unbind,
            Tensor.__bool__: self._read, Tensor.__int__: self._read, Tensor.item: self._read,
        }  # fmt: skip

    def __torch_function__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        answer = self._answers.get(func)
        return func(*args, **(kwargs or {})) if answer is None else answer(func, args, kwargs or {})

    # ---- what is known about a tensor

    def _count(self, mask: Tensor) -> int:
        return int(self._num_true.get(mask, mask.numel()))

    def _topk(self, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        dim = kwargs.get("dim", args[2] if len(args) > 2 else -1)  # noqa: PLR2004 - values, k, dim
        self._num_choices[out.indices] = args[0].shape[dim]
        return out

    def _same_choices(self, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if self._num_choices and args[0] in self._num_choices:
            self._num_choices[out] = self._num_choices[args[0]]
        return out

    def _equal(self, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        compared, with_what = args
        if compared in self._num_choices:
            # Shares differ by at most one and add up to the total.
            share = compared.numel() / self._num_choices[compared]
            self._num_true[out] = round((with_what + 1) * share) - round(with_what * share)
        elif compared.is_floating_point():
            self._num_true[out] = 0  # a computed value never equals another exactly
        return out

    def _inverted(self, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if args[0].dtype == torch.bool:
            self._num_true[out] = args[0].numel() - self._count(args[0])
        return out

    def _all(self, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        self._value[out] = self._count(args[0]) == args[0].numel()
        return out

    def _any(self, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        self._value[out] = self._count(args[0]) > 0
        return out

    def _sum(self, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if args[0].dtype == torch.bool:
            # Along some dimensions: the number of elements per result, because every token is valid.
            self._value[out] = self._count(args[0]) // max(1, out.numel())
        return out

    def _unbind(self, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if args[0] in self._value:
            for part in out:
                self._value[part] = self._value[args[0]]
        return out

    # ---- reads of a tensor's values

    def _read(self, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        return self._value[args[0]] if args[0] in self._value else func(*args, **kwargs)

    def _nonzero(self, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        found = self._positions(args[0])
        return found.unbind(1) if kwargs.get("as_tuple", False) else found

    def _positions(self, mask: Tensor) -> Tensor:
        return torch.zeros(self._count(mask), mask.dim(), dtype=torch.int64, device=mask.device)

    def _indexed(self, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        """Replaces a mask used as an index by the positions where it is true, as a device does."""
        tensor, index, *value = args
        parts = index if isinstance(index, tuple) else (index,)
        if not any(_is_mask(part) for part in parts):
            return func(*args, **kwargs)
        places: list[Any] = []
        for part in parts:
            places += self._positions(part).unbind(1) if _is_mask(part) else [part]
        return func(tensor, tuple(places), *value, **kwargs)


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype == torch.bool
