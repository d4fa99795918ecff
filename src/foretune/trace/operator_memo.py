"""Caches results of operators on fake tensors by operator and argument shapes.

A step calls the same few hundred operators on the same shapes thousands of times: blocks repeat, checkpointed blocks
run twice, an optimizer loops over equal weights. torch computes a fake result in about 100 microseconds, even from its
own cache; rebuilding the result of an equal call takes about ten.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

_PLAIN = (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
# Their results depend on more than the shapes of their arguments, or they change those shapes.
_NEVER_EQUAL = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)
_LIFTS = (torch.ops.aten.lift, torch.ops.aten.lift_fresh, torch.ops.aten.lift_fresh_copy)
_META, _CPU = torch.device("meta"), torch.device("cpu")


class KnownCall:
    """The result of an operator for all calls with arguments of the same shapes."""

    __slots__ = ("container", "is_mutable", "is_view", "results", "work")

    def __init__(self, func: OpOverload, container: type | None, results: tuple[Any, ...]) -> None:
        self.container = container
        """The list or tuple type that the operator returns; None if it returns one tensor or nothing."""
        self.results = results
        self.is_view, self.is_mutable = func.is_view, func._schema.is_mutable
        self.work: Any = None
        """For the recorder: what the operator does."""


_DEVICE = torch.ops.prim.device.default
"""More than half of all calls: torch reads the device of a fake tensor."""
_DEVICE_CALL = KnownCall(_DEVICE, None, ())


class OperatorMemo:
    """Cached calls, shared by the recordings of one model, because most of their operators are the same."""

    def __init__(self) -> None:
        self.calls: dict[tuple[Any, ...], KnownCall | None] = {}
        """None for calls that must be computed each time."""
        self.num_hits = self.num_misses = 0


class FakeResults:
    """Runs operators under a fake tensor mode, from the cache if the result is the same."""

    def __init__(self, mode: FakeTensorMode, memo: OperatorMemo) -> None:
        self._mode, self._memo = mode, memo
        with mode:
            # Attributes of every new fake tensor of this mode.
            self._attributes = dict(vars(torch.empty(1)))

    def __call__(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[Tensor], KnownCall | None]:
        """Returns the operator's output, the tensors in it, and the cache entry for such calls."""
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return args[0]._fake_device, [], _DEVICE_CALL
        tensors: list[Tensor] = []
        key = self._key(func, args, kwargs, tensors)
        if key is None:
            out = func(*args, **kwargs)
            return out, _tensors_in(out), None
        calls = self._memo.calls
        known = calls.get(key)
        if known is None:
            out = func(*args, **kwargs)
            results = _tensors_in(out)
            if key not in calls:
                self._memo.num_misses += 1
                is_stable = self._key(func, args, kwargs, []) == key
                known = calls[key] = self._observed(func, out, tensors) if is_stable else None
            return out, results, known
        self._memo.num_hits += 1
        return self._rebuilt(known, tensors)

    def _key(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> tuple[Any, ...] | None:
        """Returns a key that is equal for calls with equal results; None if a call cannot be cached."""
        if torch.is_inference_mode_enabled():
            return None
        parts: list[Any] = [func, torch.get_default_dtype()]
        if not self._describe(args, parts, tensors):
            return None
        if kwargs:
            parts.extend(kwargs)
            if not self._describe(kwargs.values(), parts, tensors):
                return None
        return tuple(parts)

    def _describe(self, values: Iterable[Any], parts: list[Any], tensors: list[Tensor]) -> bool:
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.constant is not None or value.fake_mode is not self._mode or _is_lazy(value):
                    return False
                parts.append(_description(value))
                tensors.append(value)
            elif kind is list or kind is tuple:
                parts.append(kind)
                parts.append(len(value))
                if not self._describe(value, parts, tensors):
                    return False
            elif kind in _PLAIN:
                # 1, 1.0 and True are equal, but give results of different dtypes.
                parts.append(kind)
                parts.append(value)
            else:
                return False
        return True

    def _observed(self, func: Any, out: Any, tensors: list[Tensor]) -> KnownCall | None:
        """Returns how to rebuild what an operator just returned; None if it must be computed each time."""
        if not isinstance(func, OpOverload) or func.overloadpacket in _LIFTS:
            return None
        if any(tag in func.tags for tag in _NEVER_EQUAL):
            return None
        if isinstance(out, Tensor) or out is None:
            container, items = None, (out,)
        elif type(out) in (list, tuple):
            container, items = type(out), tuple(out)
        else:
            return None
        results = []
        fresh: set[int] = set()
        for item in items:
            result = self._result(item, tensors, fresh)
            if result is None:
                return None
            results.append(result)
        return KnownCall(func, container, tuple(results))

    def _result(self, item: Any, tensors: list[Tensor], fresh: set[int]) -> tuple[Any, ...] | None:
        """Returns (index of the argument that it is), or (index of the argument it is a view of, its layout)."""
        if item is None:
            return (None,)
        if type(item) is not FakeTensor or item.constant is not None or item._fake_device != _CPU or _is_lazy(item):
            return None
        for place, tensor in enumerate(tensors):
            if tensor is item:
                return (place,)
        address = item.untyped_storage()._cdata
        look = (tuple(item.shape), item.stride(), item.dtype, item.storage_offset())
        for place, tensor in enumerate(tensors):
            if tensor.untyped_storage()._cdata == address:
                return (place, look)
        trial = self._fresh(look)
        if address in fresh or _description(trial) != _description(item):
            return None
        fresh.add(address)
        return (None, look)

    def _rebuilt(self, known: KnownCall, tensors: list[Tensor]) -> tuple[Any, list[Tensor], KnownCall]:
        items: list[Any] = []
        for result in known.results:
            place = result[0]
            if len(result) == 1:
                items.append(None if place is None else tensors[place])
            elif place is None:
                items.append(self._fresh(result[1]))
            else:
                items.append(self._view(tensors[place], result[1]))
        if known.container is None:
            (item,) = items
            return item, [] if item is None else items, known
        return known.container(items), [item for item in items if item is not None], known

    def _fresh(self, look: tuple[Any, ...]) -> Tensor:
        shape, stride, dtype, _ = look
        with torch._C._DisableTorchDispatch():
            on_meta = torch.empty_strided(shape, stride, dtype=dtype, device=_META)
        return self._as_fake(on_meta)

    def _view(self, tensor: Tensor, look: tuple[Any, ...]) -> Tensor:
        shape, stride, dtype, offset = look
        with torch._C._DisableTorchDispatch():
            on_meta = torch.empty_strided((0,), (1,), dtype=dtype, device=_META)
            on_meta.set_(tensor.untyped_storage(), offset, shape, stride)
        return self._as_fake(on_meta)

    def _as_fake(self, on_meta: Tensor) -> Tensor:
        """Makes a fake tensor as its constructor does, without checks that are redundant here."""
        fake = Tensor._make_subclass(
            FakeTensor, on_meta, require_grad=False, dispatch_device=True, device_for_backend_keys=_CPU
        )
        torch._C._set_throw_on_mutable_data_ptr(fake)
        vars(fake).update(self._attributes)
        return fake


def _is_lazy(tensor: Tensor) -> bool:
    """Whether the tensor is lazily conjugated or negated, which a description does not include."""
    return tensor.is_neg() or (tensor.dtype.is_complex and tensor.is_conj())


def _tensors_in(out: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]


def _description(tensor: Any) -> tuple[Any, ...]:
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
        tensor._fake_device,
    )
