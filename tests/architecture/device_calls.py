"""Where code depends on how a device executes: copies, streams, events, memory statistics, random states."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source_tree import read_tree

LAYER = "accelerator"
"""The only folder that may contain such code."""
_ARGUMENTS = frozenset({"non_blocking", "pin_memory", "enable_timing"})
_METHODS = frozenset(
    {
        "pin_memory",
        "is_pinned",
        "record_stream",
        "wait_stream",
        "wait_event",
        "elapsed_time",
        "synchronize",
        "empty_cache",
        "memory_allocated",
        "max_memory_allocated",
        "max_memory_reserved",
        "reset_peak_memory_stats",
        "driver_allocated_memory",
    }
)
_OF_TORCH = frozenset({"Event", "Stream", "current_stream", "stream", "get_rng_state", "set_rng_state"})
"""Of torch, torch.cuda, torch.mps or torch.accelerator: other modules have such names, too."""
_CPU_ONLY = frozenset({"torch.get_rng_state", "torch.set_rng_state"})


def device_calls(source: Path) -> list[str]:
    """Uses of such words outside of the layer for them."""
    return [
        f"{module.at(line)}: {word}"
        for module in read_tree(source)
        if module.layer != LAYER
        for line, word in _words(module.tree)
    ]


def _words(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from ((node.lineno, keyword.arg) for keyword in node.keywords if keyword.arg in _ARGUMENTS)
        elif isinstance(node, ast.arg) and node.arg in _ARGUMENTS:
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef) and node.name in _METHODS:
            yield node.lineno, node.name
        elif isinstance(node, ast.Attribute) and node.attr in _METHODS | _OF_TORCH:
            name = ast.unparse(node)
            if node.attr in _METHODS or (name.startswith("torch.") and name not in _CPU_ONLY):
                yield node.lineno, name
