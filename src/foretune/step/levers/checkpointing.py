"""Gradient checkpointing: blocks, groups of neighbouring blocks or parts of blocks drop their activations and recompute
them in the backward pass.
"""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint, noop_context_fn

from foretune.step.levers.segments import ContextPair, Segment


def apply_checkpointing(
    groups: Iterable[tuple[nn.Module, ...]],
    *,
    keeps_rng: bool,
    moves_inputs: bool = False,
    contexts: Callable[[], ContextPair] = noop_context_fn,
) -> None:
    """Checkpoints each group of modules, which run one after another and are recomputed together.

    Only the module's `forward` is wrapped, so module and weight names do not change. Saving and restoring the random
    state costs a copy per module and is only needed if forward passes draw random numbers. `moves_inputs`: outer hooks
    offload what a module saves, its inputs, to the host. `contexts` returns the contexts around a module's forward pass
    and its recomputation, for observers.
    """
    for group in groups:
        if len(group) > 1:
            Segment(group, keeps_rng=keeps_rng, contexts=contexts)
        else:
            (module,) = group
            forward = _with_tensors_in_front if keeps_rng or moves_inputs else _as_called
            module.forward = forward(module.forward, keeps_rng=keeps_rng, contexts=contexts)


def _as_called(
    forward: Callable[..., Any], *, keeps_rng: bool, contexts: Callable[[], ContextPair]
) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(
            forward, *args, use_reentrant=False, preserve_rng_state=keeps_rng, context_fn=contexts, **kwargs
        )

    return run


def _with_tensors_in_front(
    forward: Callable[..., Any], *, keeps_rng: bool, contexts: Callable[[], ContextPair]
) -> Callable[..., Any]:
    """Passes tensors as separate positional arguments: torch looks only at these to decide whose random state to save,
    and saves only these where hooks can move them to the host.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def with_tensors(*given: Tensor) -> Any:
            again = list(others)
            for place, tensor in zip(places, given, strict=True):
                again[place] = tensor
            args, kwargs = tree_unflatten(again, spec)
            return forward(*args, **kwargs)

        return checkpoint(
            with_tensors, *tensors, use_reentrant=False, preserve_rng_state=keeps_rng, context_fn=contexts
        )

    return run
