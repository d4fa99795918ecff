"""Gradient checkpointing of a share of the repeated blocks."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from foretune.choices.checkpointing import chosen_blocks

ContextPair = tuple[AbstractContextManager[object], AbstractContextManager[object]]


def apply_checkpointing(
    blocks: tuple[nn.Module, ...],
    share: float,
    *,
    keeps_rng: bool,
    contexts: Callable[[], ContextPair] = noop_context_fn,
) -> None:
    """Makes the chosen blocks forget their activations and compute them again in the backward pass.

    The block's own forward is wrapped, not the block, so that module and weight names stay what they are. Saving and
    restoring the random state costs a copy a block and is only needed where a forward pass draws numbers. `contexts`
    gives what surrounds a block's forward pass and its recomputation, for those who watch.
    """
    for index in chosen_blocks(len(blocks), share):
        block = blocks[index]
        block.forward = _recomputed(block.forward, keeps_rng=keeps_rng, contexts=contexts)


def _recomputed(
    forward: Callable[..., Any], *, keeps_rng: bool, contexts: Callable[[], ContextPair]
) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(
            forward, *args, use_reentrant=False, preserve_rng_state=keeps_rng, context_fn=contexts, **kwargs
        )

    return run
