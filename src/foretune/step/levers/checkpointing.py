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
    contexts: Callable[[], ContextPair] = noop_context_fn,
) -> None:
    """Makes the modules of each group, which run one after another, be computed again together.

    A module's own forward is wrapped, not the module, so that module and weight names stay what they are. Saving and
    restoring the random state costs a copy a module and is only needed where a forward pass draws numbers. `contexts`
    gives what surrounds a module's forward pass and its recomputation, for those who watch.
    """
    for group in groups:
        if len(group) > 1:
            Segment(group, keeps_rng=keeps_rng, contexts=contexts)
        else:
            (module,) = group
            module.forward = _recomputed(module.forward, keeps_rng=keeps_rng, contexts=contexts)


def _recomputed(
    forward: Callable[..., Any], *, keeps_rng: bool, contexts: Callable[[], ContextPair]
) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        # Tensors go one by one and in front: torch asks only those whose random state is to be kept, and keeps only
        # those where hooks can move them to the host.
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
