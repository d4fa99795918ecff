"""Regional compile: the repeated blocks are compiled, once for all of a kind."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn

# A block has a graph for each size of image, with and without gradients, in training and in sampling. Torch gives up
# after eight by default, which here would be an error.
_MAX_GRAPHS = 64


def apply_compile(blocks: tuple[nn.Module, ...], backend: str = "inductor") -> None:
    """Compiles each block's own forward, so that names stay what they are and checkpointing goes around it.

    Blocks of one class with weights of equal shapes share a graph: weights are its inputs. A block of which some part
    cannot be compiled is an error, never run uncompiled. Sizes are fixed in a graph: one for any size could be chosen
    in the forward pass and not when the block is computed again.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MAX_GRAPHS)
    for block in blocks:
        block.forward = _compiled(block.forward, backend)


def _compiled(forward: Callable[..., Any], backend: str) -> Callable[..., Any]:
    # Dropout draws what it would draw uncompiled: every draw is a function of the seed, whatever the levers.
    options: dict[str, Any] | None = {"fallback_random": True} if backend == "inductor" else None
    compiled: Callable[..., Any] = torch.compile(
        forward, fullgraph=True, dynamic=False, backend=backend, options=options
    )

    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        return compiled(*args, **kwargs)

    return run
