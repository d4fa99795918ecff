"""Gradient checkpointing: blocks, groups of neighbours or parts of blocks forget their activations and compute them
again in the backward pass.
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
    """Makes the modules of each group, which run one after another, be computed again together.

    A module's own forward is wrapped, not the module, so that module and weight names stay what they are. Saving and
    restoring the random state costs a copy a module and is only needed where a forward pass draws numbers.
    `moves_inputs`: hooks around all of it move what is kept of a module, its inputs, to the host. `contexts` gives what
    surrounds a module's forward pass and its recomputation, for those who watch.
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
    """Hands tensors over one by one and by position: torch asks only such tensors whose random state is to be kept, and
    keeps only such tensors where hooks can move them to the host.
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
