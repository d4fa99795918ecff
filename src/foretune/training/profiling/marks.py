"""Ranges in a trace that say which phase, step or block an operator belongs to. Only there while a profiler runs."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from foretune.models.family import Family

PHASE = "phase "
BLOCK = "block "
STEP = "ProfilerStep#"
"""What TensorBoard's plugin knows a step by."""


def phase_range(name: str) -> AbstractContextManager[object]:
    return torch.profiler.record_function(PHASE + name)


def step_range(step: int) -> Any:
    return torch.profiler.record_function(f"{STEP}{step + 1}")


class BlockRanges:
    """Surrounds each repeated block of a denoiser with a range, also where it is recomputed in the backward pass.

    A block that fails, or that checkpointing leaves early, ends its range all the same.
    """

    def __init__(self, family: Family, denoiser: nn.Module) -> None:
        names = {id(module): name for name, module in denoiser.named_modules()}
        self._open: list[Any] = []
        self._handles: list[RemovableHandle] = []
        for number, block in enumerate(family.blocks(denoiser)):
            name = BLOCK + names.get(id(block), str(number)).removeprefix("base_model.model.")
            self._handles.append(block.register_forward_pre_hook(self._entering(name)))
            self._handles.append(block.register_forward_hook(self._left, always_call=True))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _entering(self, name: str) -> Any:
        def enter(module: nn.Module, arguments: Any) -> None:  # noqa: ARG001 - the form of a hook
            entered = torch.profiler.record_function(name)
            entered.__enter__()
            self._open.append(entered)

        return enter

    def _left(self, module: nn.Module, arguments: Any, result: Any) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)
