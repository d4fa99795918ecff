"""Regional compilation: compiles the repeated blocks, once per kind."""

import os
import shutil
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from foretune.core.errors import Refused

# A block has one graph per image size, with and without gradients, in training and in sampling. torch's default limit
# is eight, and exceeding it would raise an error here. A parameter of the compiled function, because torch's global
# setting is valid in one thread, and on a GPU autograd recomputes checkpointed blocks in another.
_MAX_GRAPHS = 64
_CPP_COMPILERS = ("g++", "clang++", "c++", "cl")


def check_compiler(device: torch.device) -> None:
    """Raises if torch lacks what it compiles with on this device: a C++ compiler for a CPU, Triton for a GPU."""
    if device.type == "cuda" and find_spec("triton") is None:
        raise Refused(
            "torch compiles for a GPU with Triton, which is not installed. Run: pip install triton, or leave "
            "compile off"
        )
    named = os.environ.get("CXX")
    if device.type == "cpu" and not any(map(shutil.which, [named] if named else _CPP_COMPILERS)):
        lack = f"CXX={named} is not" if named else "none is"
        raise Refused(
            f"torch compiles for a CPU with a C++ compiler, and {lack} on the PATH. Install g++ (on Debian: apt "
            "install g++), or leave compile off"
        )


def apply_compile(blocks: tuple[nn.Module, ...], backend: str = "inductor") -> None:
    """Compiles each block's `forward`, so that names do not change and checkpointing wraps the compiled code.

    Blocks of one class with weights of equal shapes share a graph, because weights are its inputs. A block that cannot
    be compiled in full raises an error; it never runs uncompiled. Graphs have static sizes: with dynamic ones, the
    forward pass could choose another graph than the recomputation.
    """
    for block in blocks:
        block.forward = _compiled(block.forward, backend)


def _compiled(forward: Callable[..., Any], backend: str) -> Callable[..., Any]:
    # Compiled dropout draws the same numbers as uncompiled: every draw is a function of the seed, whatever the levers.
    options: dict[str, Any] | None = {"fallback_random": True} if backend == "inductor" else None
    # torch's stubs do not have the limit.
    compiled: Callable[..., Any] = torch.compile(  # type: ignore[call-overload]
        forward, fullgraph=True, dynamic=False, backend=backend, options=options, recompile_limit=_MAX_GRAPHS
    )

    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        return compiled(*args, **kwargs)

    return run
