"""Records every allocation and release of a storage, and the cost of each operator."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from foretune.accelerator.copies import is_computing_on_host
from foretune.core.values.step_trace import HOST, TO_DEVICE, TO_HOST
from foretune.core.vocabulary import StepPhase
from foretune.trace.operator_memo import FakeResults, KnownCall
from foretune.trace.operator_work import OperatorWork, dtype_name, work_of

WORKSPACE = "workspace"
"""Operator name of allocations inside another operator."""
Workspace = Callable[[Any, tuple[Any, ...], list[Tensor]], int]
"""Returns the workspace bytes of an operator from its arguments and results."""

_COPIES = (torch.ops.aten.copy_, torch.ops.aten._to_copy)
_NO_HOST_TIME = (torch.ops.prim.device.default,)
"""Fake tensors ask for their device with an operator; real ones do not."""
_EMPTY_MAKERS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


class Allocation(NamedTuple):
    """A storage that was allocated."""

    number: int
    num_bytes: int
    place: "Place"
    shape: tuple[int, ...]
    dtype: str
    operator: str
    result: int = 0
    """Index among the operator's results."""
    num_results: int = 1
    """Number of the operator's results: an operator on a list of tensors has one for each."""
    listed_with: int | None = None
    """Block of the tensor that it was computed from, if the operator works on a list of tensors."""


class Release(NamedTuple):
    """A storage that was freed or resized to zero."""

    number: int
    place: "Place"


class Place(NamedTuple):
    """The phase and block in which something happened."""

    phase: str
    block: int | None
    """Index of the repeated block; None outside the blocks."""


class Operation(NamedTuple):
    """An operator that does work: it writes memory beyond allocating it."""

    place: Place
    kind: str
    """matmul, conv, attention or pointwise; TO_HOST and TO_DEVICE for transfers, HOST for work of the host."""
    dtype: str
    flops: int
    bytes_by_tensor: tuple[int, ...]
    """What is read and written of each tensor: together they may not grow in any simple way."""
    shape: tuple[int, ...] = ()
    """As in `Work`."""
    is_frozen: bool = False
    is_masked: bool = False
    is_recomputed: bool = False

    @property
    def num_bytes_moved(self) -> int:
        return sum(self.bytes_by_tensor)


class Dispatched(NamedTuple):
    """Where the host issues an operator."""

    place: Place
    is_recomputed: bool


@dataclass
class Recording:
    """The recorded events, in order."""

    events: list[Allocation | Release] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    num_dispatched: Counter[Dispatched] = field(default_factory=Counter)
    """Operators issued by the host, views included, by place: each costs host time."""


class Recorder(TorchDispatchMode):
    """A dispatch mode below autograd, which sees every operator of forward, backward and optimizer."""

    def __init__(
        self,
        current_block: Callable[[str], int | None],
        workspace: Workspace | None = None,
        *,
        tells_host: bool = False,
        fake_results: FakeResults | None = None,
    ) -> None:
        """`tells_host`: the step runs on a device whose memory is separate from the host's.

        `fake_results`: runs the operators if they are recorded on fake tensors.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording()
        self.phase = "setup"
        self.is_recomputing = False
        self.frozen: set[int] = set()
        """Numbers of the storages of frozen weights."""
        self.on_host: set[int] = set()
        """Numbers of the storages in host memory."""
        self.blocks_of: dict[int, int] = {}
        """Block by storage number, if known: the host processes weights one by one."""
        self._listed_with: dict[int, int] = {}
        """The same for what operators on lists of tensors made."""
        self._tells_host = tells_host
        self._current_block = current_block
        self._workspace = workspace
        self._run = fake_results or _run_as_is
        self._numbers: dict[int, int] = {}
        """Number of each live storage, by address."""
        self._watches: dict[int, _Watch] = {}
        self._sizes: dict[int, int] = {}
        self._next_number = 0
        self._finished = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return (
            False  # nothing is compiled while a step is recorded, and the guard against it costs more than most calls
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for kind in types:
            if kind is not FakeTensor and is_traceable_wrapper_subclass_type(kind):
                return NotImplemented  # a wrapper subclass: its operators on the inner tensors are recorded
        kwargs = kwargs or {}
        out, results, known = self._run(func, args, kwargs)
        place = Place(self.phase, self._block(args))
        is_any_made = False
        many = args[0] if args and isinstance(args[0], list | tuple) else ()
        listed = many if len(results) > 1 else ()
        sources = listed if len(listed) == len(results) else [None] * len(results)
        for index, (source, result) in enumerate(zip(sources, results, strict=True)):
            if self.adopt(result, func, place, index, len(results), self._block_of(source)):
                is_any_made = True
        is_view, is_mutable = (
            (func.is_view, func._schema.is_mutable) if known is None else (known.is_view, known.is_mutable)
        )
        if (is_any_made or is_mutable) and not is_view:
            if self._workspace is not None:
                self._pass_by(self._workspace(func, args, results), place)
            if self._is_each_weights(many):
                self._note_work_of_each(many, args, results)
                return out
            self._note_work(func, args, kwargs, out, results, self._work_place(place, args), known)
            if self.on_host:
                self._note_transfer(func, args, results, place)
        if func not in _NO_HOST_TIME:
            self.recording.num_dispatched[Dispatched(self._work_place(place, args), self.is_recomputing)] += 1
        return out

    def _work_place(self, place: Place, args: tuple[Any, ...]) -> Place:
        """Returns the place that the work grows with: an optimizer works on the weights of a block outside of it."""
        if place.block is not None or place.phase != StepPhase.OPTIMIZER:
            return place
        return Place(place.phase, next((self._block_of(each) for each in args if isinstance(each, Tensor)), None))

    def _is_each_weights(self, many: Any) -> bool:
        return self.phase == StepPhase.OPTIMIZER and len(many) > 1 and all(isinstance(each, Tensor) for each in many)

    def _note_work_of_each(self, many: Sequence[Tensor], args: tuple[Any, ...], results: list[Tensor]) -> None:
        """Records an operator on a list, of something of each weight, as one for each block."""
        lists = [each for each in (*args, results) if isinstance(each, list | tuple) and len(each) == len(many)]
        by_block: dict[int | None, list[int]] = {}
        for index, tensor in enumerate(many):
            found = by_block.setdefault(self._block_of(tensor), [])
            found += [each[index].numel() * each[index].element_size() for each in lists if _is_tensor(each[index])]
        for block, moved in by_block.items():
            place = Place(self.phase, block)
            self._add(place, OperatorWork("pointwise", dtype_name(many[0].dtype), 0, tuple(moved), ()))
            self.recording.num_dispatched[Dispatched(place, self.is_recomputing)] += 1

    def adopt(
        self,
        tensor: Tensor,
        func: Any = None,
        place: Place | None = None,
        result: int = 0,
        num_results: int = 1,
        listed_with: int | None = None,
    ) -> bool:
        """Starts tracking a tensor's storage; returns False if it is already tracked."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._numbers:
            return False
        place = place or Place(self.phase, None)
        number, num_bytes = self._follow(storage), storage.nbytes()
        self._sizes[number] = num_bytes
        if self._tells_host and is_computing_on_host():
            self.on_host.add(number)
        if place.block is not None:
            self.blocks_of[number] = place.block
        elif listed_with is not None:
            self._listed_with[number] = listed_with
        operator = func.overloadpacket.__name__ if func is not None else "given"
        shape, dtype = tuple(tensor.shape), dtype_name(tensor.dtype)
        made = Allocation(number, num_bytes, place, shape, dtype, operator, result, num_results, listed_with)
        self.recording.events.append(made)
        return True

    def _block_of(self, source: Any) -> int | None:
        """Returns the block of an element of a list, such as a weight, its gradient or something made from them."""
        if not isinstance(source, Tensor):
            return None
        number = self._numbers.get(source.untyped_storage()._cdata)
        return None if number is None else self.blocks_of.get(number, self._listed_with.get(number))

    def _follow(self, storage: torch.UntypedStorage) -> int:
        """Assigns a new number to a storage until it is freed."""
        number, self._next_number = self._next_number, self._next_number + 1
        self._numbers[storage._cdata] = number
        self._watches[number] = _Watch(storage, self._died, number)
        return number

    def _died(self, watch: "_Watch") -> None:
        del self._watches[watch.number]
        # A resized storage has a newer number.
        if self._numbers.get(watch.address) == watch.number:
            del self._numbers[watch.address]
        self._released(watch.number)

    def _block(self, args: tuple[Any, ...]) -> int | None:
        """Returns the running block or, if the host computes with a block's weight, that block."""
        block = self._current_block(self.phase)
        if block is not None or not (self._tells_host and is_computing_on_host()):
            return block
        numbers = [self._numbers.get(t.untyped_storage()._cdata) for t in tree_leaves(args) if isinstance(t, Tensor)]
        blocks = {None if number is None else self.blocks_of.get(number) for number in numbers}
        return blocks.pop() if len(blocks) == 1 else None

    def number_of(self, tensor: Tensor) -> int:
        """Returns the number of a tensor's storage."""
        return self._numbers[tensor.untyped_storage()._cdata]

    def moved_to_host(self, tensor: Tensor) -> None:
        """Notes a new copy in host memory; a callback for `accelerator.copies.watching_host`."""
        number = self.number_of(tensor)
        if self._tells_host and number not in self.on_host:
            self.on_host.add(number)
            self.charge(OperatorWork(TO_HOST, dtype_name(tensor.dtype), 0, (tensor.untyped_storage().nbytes(),), ()))

    def charge(self, work: OperatorWork, *, is_masked: bool = False) -> None:
        """Counts the work of an imitated fused kernel, which no operator below shows."""
        place = Place(self.phase, self._current_block(self.phase))
        self._add(place, work, is_masked=is_masked)

    def _add(self, place: Place, work: OperatorWork, *, is_frozen: bool = False, is_masked: bool = False) -> None:
        self.recording.operations.append(Operation(place, *work, is_frozen, is_masked, self.is_recomputing))

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Around what gradient checkpointing computes again."""
        before, self.is_recomputing = self.is_recomputing, True
        try:
            yield
        finally:
            self.is_recomputing = before

    def _pass_by(self, num_bytes: int, place: Place) -> None:
        """Records an operator's workspace: allocated after the results and freed at once."""
        if num_bytes:
            number, self._next_number = self._next_number, self._next_number + 1
            self.recording.events.append(Allocation(number, num_bytes, place, (num_bytes,), "uint8", WORKSPACE))
            self.recording.events.append(Release(number, place))

    def finish(self) -> Recording:
        """Returns the recording; later releases belong to the end of the program, not to the step."""
        self._finished = True
        return self.recording

    def _released(self, number: int) -> None:
        if self._finished:
            return
        if self._sizes.pop(number, None) is not None:
            self.recording.events.append(Release(number, Place(self.phase, self._current_block(self.phase))))

    def _note_work(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        results: list[Tensor],
        place: Place,
        known: KnownCall | None,
    ) -> None:
        if not results or func.overloadpacket.__name__ in _EMPTY_MAKERS:
            return
        work = None if known is None else known.work
        if work is None:
            work = work_of(func, args, kwargs, out, results)
            if known is not None:
                known.work = work
        if self._tells_host and is_computing_on_host():
            work = work._replace(kind=HOST, shape=())
        self._add(place, work, is_frozen=bool(work.shape) and self._reads_frozen(args))

    def _reads_frozen(self, args: tuple[Any, ...]) -> bool:
        tensors = (argument for argument in args if isinstance(argument, Tensor))
        return any(self._numbers.get(tensor.untyped_storage()._cdata) in self.frozen for tensor in tensors)

    def _note_transfer(self, func: Any, args: tuple[Any, ...], results: list[Tensor], place: Place) -> None:
        """Records copies between host and device: storages that are not known to be on the host are the device's."""
        if func.overloadpacket not in _COPIES or not results:
            return
        source = args[1] if func.overloadpacket is torch.ops.aten.copy_ else args[0]
        if not isinstance(source, Tensor):
            return
        from_host, to_host = (
            self._numbers.get(tensor.untyped_storage()._cdata) in self.on_host for tensor in (source, results[0])
        )
        if from_host != to_host:
            kind, num_bytes = TO_DEVICE if from_host else TO_HOST, source.numel() * source.element_size()
            self._add(place, OperatorWork(kind, dtype_name(source.dtype), 0, (num_bytes,), ()))

    @contextmanager
    def watching_resizes(self) -> Iterator[None]:
        """Records resizes: sharded training frees weights by resizing their storage, which bypasses dispatch."""
        original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            number = self._numbers.get(storage._cdata)
            result = original(storage, size)
            if number is not None and size != self._sizes.get(number, 0):
                self._resized(storage, number, size)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]

    def _resized(self, storage: torch.UntypedStorage, number: int, size: int) -> None:
        self._released(number)
        if size:
            place = Place(self.phase, self._current_block(self.phase))
            fresh = self._follow(storage)
            self._sizes[fresh] = size
            self.recording.events.append(Allocation(fresh, size, place, (size,), "uint8", "resize"))


class _Watch(weakref.ref[torch.UntypedStorage]):
    """Reports when a storage is freed."""

    __slots__ = ("address", "number")
    address: int
    number: int

    def __new__(cls, storage: torch.UntypedStorage, died: Callable[["_Watch"], None], number: int) -> Self:
        watch = super().__new__(cls, storage, died)
        watch.address, watch.number = storage._cdata, number
        return watch

    def __init__(self, storage: torch.UntypedStorage, died: Callable[["_Watch"], None], number: int) -> None:
        super().__init__(storage, died)  # type: ignore[call-arg]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _run_as_is(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Tensor], KnownCall | None]:
    out = func(*args, **kwargs)
    return out, [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)], None
