"""Copies to the host that arrive as late as they may: only when they are waited for. Until then they hold NaN."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from foretune.step import ema
from foretune.step.optimizers import on_host

_MODULES = (on_host, ema)


class LateCopies:
    """Stands for the asynchronous copies of `accelerator.copies`."""

    def __init__(self) -> None:
        self._owed: list[tuple[Tensor, Tensor]] = []
        self.num_late = 0

    def to_host(self, tensor: Tensor, device: torch.device | None = None) -> Tensor:
        # The device copies in order, so what it sends is what the tensor holds now.
        stored = torch.full_like(tensor, torch.nan)
        self._owed.append((stored, tensor.detach().clone()))
        self.num_late += 1
        return stored

    def wait_for_copies(self, device: torch.device) -> None:
        self._deliver(len(self._owed))

    def issued(self, device: torch.device) -> "_Issued":
        return _Issued(self, self.num_late)

    def deliver_first(self, num: int) -> None:
        self._deliver(num - (self.num_late - len(self._owed)))

    def _deliver(self, num: int) -> None:
        for _ in range(num):
            stored, sent = self._owed.pop(0)
            stored.copy_(sent)


class _Issued:
    def __init__(self, copies: LateCopies, num: int) -> None:
        self._copies, self._num = copies, num

    def wait(self) -> None:
        self._copies.deliver_first(self._num)


@contextmanager
def late_copies() -> Iterator[LateCopies]:
    """Makes the copies of offloaded optimizers and averages late."""
    copies = LateCopies()
    with (
        mock.patch.multiple(on_host, to_host=copies.to_host, wait_for_copies=copies.wait_for_copies),
        mock.patch.multiple(
            ema, to_host=copies.to_host, wait_for_copies=copies.wait_for_copies, CopiesIssued=copies.issued
        ),
    ):
        yield copies
