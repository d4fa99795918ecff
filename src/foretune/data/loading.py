"""Batches made ahead by other processes, whose number changes when a batch comes, never what it is."""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from foretune.core.errors import UserError
from foretune.data.batch import Batch


class _Failure:
    """A user's mistake met in another process, brought back as its sentence instead of a traceback."""

    def __init__(self, text: str) -> None:
        self.text = text


class _Guarded(Dataset[Any]):
    """A dataset whose user errors are values; torch would rebuild the exception and lose its text."""

    def __init__(self, batches: Dataset[Batch]) -> None:
        self.batches = batches

    def __getitem__(self, number: int) -> Any:
        try:
            return self.batches[number]
        except UserError as error:
            return _Failure(str(error))


class BatchLoader(DataLoader[Batch]):
    """A DataLoader that raises what its processes failed with."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        for item in super().__iter__():
            if isinstance(item, _Failure):
                raise UserError(item.text)
            yield item


def loader(
    batch_maker: Dataset[Batch],
    first_micro: int,
    last_micro: int,
    num_workers: int = 0,
    pin_memory: bool = False,
) -> BatchLoader:
    """The batches `first_micro` to `last_micro` (not included) in order, prepared by `num_workers` processes.

    In training they count forward passes: step * gradient_accumulation + micro.
    """
    return BatchLoader(
        _Guarded(batch_maker),
        batch_size=None,
        sampler=range(first_micro, last_micro),
        num_workers=num_workers,
        pin_memory=pin_memory,
        multiprocessing_context=start_method() if num_workers else None,
        # Without one of its own the loader would draw from, and so change, the global generator.
        generator=torch.Generator().manual_seed(0),
    )


def start_method() -> str:
    """How loader processes begin: as a copy of this one, unless it holds a device that no copy may touch."""
    holds_device = bool(torch.cuda.is_initialized())
    return "fork" if sys.platform == "linux" and not holds_device else "spawn"
