"""Some of many samples, as a sequence of their numbers that takes one byte per sample of the whole."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

_BLOCK = 4096


class SelectedSamples(Sequence[int]):
    """The numbers of the samples that a mask selects, ascending."""

    def __init__(self, mask: npt.NDArray[np.bool_]) -> None:
        self.mask = mask
        counts = np.add.reduceat(mask, np.arange(0, len(mask), _BLOCK), dtype=np.int64) if len(mask) else mask[:0]
        self._ends = np.cumsum(counts, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...

    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        if place < 0:
            place += len(self)
        if not 0 <= place < len(self):
            raise IndexError(place)
        block = int(np.searchsorted(self._ends, place, side="right"))
        before = int(self._ends[block - 1]) if block else 0
        start = block * _BLOCK
        return start + int(np.flatnonzero(self.mask[start : start + _BLOCK])[place - before])

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self.mask), _BLOCK):
            yield from (start + np.flatnonzero(self.mask[start : start + _BLOCK])).tolist()
