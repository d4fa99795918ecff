"""Gradient checkpointing of several neighbouring blocks at once, although the model calls them one by one.

While the blocks of a segment run, autograd saves a ticket instead of each tensor. When the backward pass unpacks the
first ticket, the whole segment runs again from the inputs of its first block. The tensors saved during this second run
are matched to the tickets by order, and dropped after use.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten
from torch.utils.checkpoint import get_device_states, set_device_states

ContextPair = tuple[AbstractContextManager[object], AbstractContextManager[object]]


class Segment:
    """Replaces the forwards of blocks that run one after another by ones that are recomputed together."""

    def __init__(self, blocks: tuple[nn.Module, ...], *, keeps_rng: bool, contexts: Callable[[], ContextPair]) -> None:
        self._num_blocks = len(blocks)
        self._keeps_rng = keeps_rng
        self._contexts = contexts
        self._current: _Pass | None = None
        for place, block in enumerate(blocks):
            block.forward = self._wrapped(block.forward, place)

    def _wrapped(self, forward: Callable[..., Any], place: int) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            if place == 0:
                self._current = _Pass()
            current = self._current
            assert current is not None, "the blocks of a segment run in their order"
            assert len(current.calls) == place, "the blocks of a segment run in their order, once each"
            if place == self._num_blocks - 1:
                self._current = None  # from now on only the tickets hold it
            context, context_again = self._contexts()
            current.note(forward, args, kwargs, context_again, keeps_rng=self._keeps_rng)
            try:
                with saved_tensors_hooks(current.pack, current.unpack), context:
                    result = forward(*args, **kwargs)
            except BaseException:
                self._current = None  # no later block will clear it, and it holds the inputs
                raise
            current.note_results(result)
            return result

        return run


class _Ticket:
    """Stands for a tensor that will be recomputed."""

    __slots__ = ("__weakref__",)


class _Enough(Exception):
    """Raised when every tensor with a ticket has been recomputed."""


@dataclass(frozen=True)
class _Earlier:
    """An argument returned by an earlier block of the segment."""

    call: int
    result: int


@dataclass(frozen=True)
class _Given:
    """An argument from outside the segment."""

    number: int


@dataclass
class _Call:
    """Everything needed to rerun a block."""

    forward: Callable[..., Any]
    leaves: list[Any]
    """Flattened arguments; tensors are replaced by where to find them."""
    spec: TreeSpec
    given: Tensor | None
    """Holds the tensors from outside the segment where saved-tensor hooks can move them to the host."""
    surroundings: "_Surroundings"
    context: AbstractContextManager[object]

    def arguments(self, results: dict[_Earlier, Any]) -> Any:
        """Returns args and kwargs, with what earlier blocks returned in the recomputation."""
        kept: Any = self.given.grad_fn if self.given is not None else None
        given = kept.saved_tensors if kept is not None else ()

        def found(leaf: Any) -> Any:
            if isinstance(leaf, _Given):
                return given[leaf.number]
            return results[leaf] if isinstance(leaf, _Earlier) else leaf

        return tree_unflatten([found(leaf) for leaf in self.leaves], self.spec)


@dataclass
class _Pass:
    """One forward pass through a segment."""

    calls: list[_Call] = field(default_factory=list)
    tickets: list[weakref.ref[_Ticket]] = field(default_factory=list)
    shapes: list[tuple[torch.Size, torch.dtype]] = field(default_factory=list)
    results: dict[int, tuple[weakref.ref[Tensor], int, _Earlier]] = field(default_factory=dict)
    """Returned tensors by `id`, with their version: after an in-place change it is a different tensor."""
    last_uses: dict[_Earlier, int] = field(default_factory=dict)
    was_computed_again: bool = False
    computed_again: "weakref.WeakKeyDictionary[_Ticket, Tensor]" = field(default_factory=weakref.WeakKeyDictionary)

    def note(
        self,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context_again: AbstractContextManager[object],
        *,
        keeps_rng: bool,
    ) -> None:
        """Records the inputs of a block before it runs."""
        flat, spec = tree_flatten((args, kwargs))
        leaves: list[Any] = []
        given: list[Tensor] = []
        for leaf in flat:
            if not isinstance(leaf, Tensor):
                leaves.append(leaf)
                continue
            earlier = self._earlier(leaf)
            if earlier is None:
                leaves.append(_Given(len(given)))
                given.append(leaf)
            else:
                leaves.append(earlier)
                self.last_uses[earlier] = len(self.calls)
        kept = _Kept.apply(torch.empty(0, requires_grad=True), *given) if given else None  # type: ignore[no-untyped-call]
        tensors = [leaf for leaf in flat if isinstance(leaf, Tensor)]
        surroundings = _Surroundings(tensors, keeps_rng=keeps_rng)
        self.calls.append(_Call(forward, leaves, spec, kept, surroundings, context_again))

    def note_results(self, result: Any) -> None:
        """Records the outputs of a block, which later blocks may take as inputs."""
        call = len(self.calls) - 1
        for number, leaf in enumerate(tree_leaves(result)):
            if isinstance(leaf, Tensor):
                self.results[id(leaf)] = (weakref.ref(leaf), leaf._version, _Earlier(call, number))

    def pack(self, tensor: Tensor) -> _Ticket:
        ticket = _Ticket()
        self.tickets.append(weakref.ref(ticket))
        self.shapes.append((tensor.shape, tensor.dtype))
        return ticket

    def unpack(self, ticket: _Ticket) -> Tensor:
        if not self.was_computed_again:
            self.was_computed_again = True
            self._compute_again()
        assert ticket in self.computed_again, "a tensor is asked for twice, and was dropped after the first time"
        return self.computed_again.pop(ticket)

    def _earlier(self, tensor: Tensor) -> _Earlier | None:
        reference, version, earlier = self.results.get(id(tensor), (None, 0, None))
        # Python reuses an id after its object is freed, so compare the tensor itself.
        is_same = reference is not None and reference() is tensor and tensor._version == version
        return earlier if is_same else None

    def _compute_again(self) -> None:
        num_seen = 0

        def capture(tensor: Tensor) -> Tensor:
            nonlocal num_seen
            shape, dtype = self.shapes[num_seen]
            assert (tensor.shape, tensor.dtype) == (shape, dtype), "a block computed something else the second time"
            ticket = self.tickets[num_seen]()
            tensor = tensor.detach() if tensor.requires_grad else tensor
            if ticket is not None:
                self.computed_again[ticket] = tensor
            num_seen += 1
            if num_seen == len(self.tickets):
                raise _Enough
            return tensor

        try:
            with saved_tensors_hooks(capture, lambda tensor: tensor), torch.enable_grad():
                self._run_again()
        except _Enough:
            return
        raise AssertionError(f"blocks kept {len(self.tickets)} tensors, and {num_seen} the second time")

    def _run_again(self) -> None:
        results: dict[_Earlier, Any] = {}
        for number, call in enumerate(self.calls):
            args, kwargs = call.arguments(results)
            results = {earlier: value for earlier, value in results.items() if self.last_uses[earlier] > number}
            with call.surroundings.restored(), call.context:
                result = call.forward(*args, **kwargs)
            del args, kwargs
            for place, leaf in enumerate(tree_leaves(result)):
                if _Earlier(number, place) in self.last_uses:
                    results[_Earlier(number, place)] = leaf
            del result


class _Kept(torch.autograd.Function):
    """Saves tensors through autograd, so that hooks which offload saved tensors also offload these."""

    @staticmethod
    def forward(ctx: Any, empty: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return empty.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:  # noqa: ARG004 - torch's interface
        raise AssertionError("nothing is computed from what is kept here")


class _Surroundings:
    """The autocast and random state at the time a block ran."""

    def __init__(self, tensors: list[Tensor], *, keeps_rng: bool) -> None:
        types = {"cpu", *(tensor.device.type for tensor in tensors)}
        self._device_type = next((t for t in sorted(types) if t not in ("cpu", "meta")), None)
        self._autocasts = [
            (t, torch.is_autocast_enabled(t), torch.get_autocast_dtype(t))
            for t in sorted(types)
            if torch.amp.is_autocast_available(t)
        ]
        self._caches_casts = torch.is_autocast_cache_enabled()
        self._rng = torch.get_rng_state() if keeps_rng else None
        self._device_ids, self._device_rngs = (
            get_device_states(*tensors) if keeps_rng and self._device_type else ([], [])
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self._rng is not None:
                stack.enter_context(torch.random.fork_rng(self._device_ids, device_type=self._device_type or "cuda"))
                torch.set_rng_state(self._rng)
                if self._device_type is not None:
                    set_device_states(self._device_ids, self._device_rngs, device_type=self._device_type)
            for device_type, is_enabled, dtype in self._autocasts:
                stack.enter_context(
                    torch.autocast(device_type, dtype, enabled=is_enabled, cache_enabled=self._caches_casts)
                )
            yield
