"""Loads batches in worker processes. The number of workers affects when a batch arrives, never its content."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from foretune.accelerator.copies import loader_settings
from foretune.core.errors import UserError
from foretune.data.batch import Batch
from foretune.data.maker import BatchMaker
from foretune.data.shards.ahead import ReadAhead

_HOST = torch.device("cpu")


class _Failure:
    """A user error in a worker process, returned as its message instead of a traceback."""

    def __init__(self, text: str) -> None:
        self.text = text


class _Guarded(Dataset[Any]):
    """A dataset that returns user errors as values; torch would rebuild the exception and lose its text."""

    def __init__(self, batches: Dataset[Batch]) -> None:
        self.batches = batches

    def __getitem__(self, number: int) -> Any:
        try:
            return self.batches[number]
        except UserError as error:
            return _Failure(str(error))


class BatchLoader(DataLoader[Batch]):
    """A DataLoader that raises the errors of its workers."""

    ahead: ReadAhead | None = None
    """Downloads meanwhile what the next batches are made of."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        assert isinstance(self.sampler, range)
        # Workers are forked before there are threads that download.
        items = super().__iter__()
        try:
            with self.ahead or nullcontext() as ahead:
                for micro_index in self.sampler:
                    if ahead is not None:
                        ahead.reached(micro_index)
                    item = next(items)
                    if isinstance(item, _Failure):
                        raise UserError(item.text)
                    yield item
        finally:
            # Ends the workers now, also where a traceback keeps this frame.
            del items


def loader(
    batch_maker: Dataset[Batch],
    first_micro: int,
    last_micro: int,
    num_workers: int = 0,
    device: torch.device = _HOST,
) -> BatchLoader:
    """Loads the batches `first_micro` to `last_micro` (exclusive) in order, with `num_workers` processes.

    `device` is where they go next.
    In training they are numbered by forward pass: step * gradient_accumulation + micro.
    """
    batches = BatchLoader(
        _Guarded(batch_maker),
        batch_size=None,
        sampler=range(first_micro, last_micro),
        num_workers=num_workers,
        multiprocessing_context=start_method() if num_workers else None,
        # Without its own generator, the loader would draw from the global one and change it.
        generator=torch.Generator().manual_seed(0),
        **loader_settings(device),
    )
    batches.ahead = batch_maker.ahead() if isinstance(batch_maker, BatchMaker) else None
    return batches


def start_method() -> str:
    """Returns `fork` on Linux, unless this process uses a device that a forked process must not touch."""
    holds_device = bool(torch.cuda.is_initialized())
    return "fork" if sys.platform == "linux" and not holds_device else "spawn"
