"""The order of all steps for data that is streamed shard by shard: as pure as `Order`, but near in place.

Each epoch shuffles all shards and takes them in windows of a few. The samples of a window are shuffled together, and so
are its steps. So two samples of one shard are always in the same window, and a step reads from the shards of one window
(at its end also from those of the next one). With one window for all shards, it is a full shuffle.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from foretune.core.draws import Permutation
from foretune.data.order import StepSamples

UNUSED = 255
"""Code of a sample that is not trained on."""
MOST_BUCKETS = UNUSED
_MOST_KEPT = 64
Numbers = npt.NDArray[np.int64]
T = TypeVar("T")


class WindowOrder:
    """The order of all steps, computed without iterating over other steps; one byte per sample.

    Within an epoch, the windows' members of a bucket make one stream, which is split into steps of `samples_per_step`;
    its last step is filled up from its start, as in `Order`. A step belongs to the window in which it begins; the steps
    of a window are shuffled.
    """

    def __init__(
        self,
        codes: npt.NDArray[np.uint8],
        shard_ends: Sequence[int],
        *,
        num_buckets: int,
        shards_per_window: int,
        samples_per_step: int,
        seed: int,
    ) -> None:
        """`codes` has the bucket of each sample, or UNUSED; `shard_ends` has the end of each shard's samples."""
        assert samples_per_step > 0
        assert 0 < num_buckets <= MOST_BUCKETS
        assert len(codes) == shard_ends[-1]
        self.num_buckets, self.samples_per_step, self.seed = num_buckets, samples_per_step, seed
        self.shards_per_window = shards_per_window
        self._codes = codes
        self._starts = np.asarray([0, *shard_ends], dtype=np.int64)
        self._counts = np.stack(
            [
                np.bincount(codes[start:end], minlength=UNUSED + 1)[:num_buckets]
                for start, end in zip(self._starts[:-1], self._starts[1:], strict=True)
            ]
        ).astype(np.int64)
        totals = self._counts.sum(axis=0)
        self._num_steps = int((-(-totals // samples_per_step)).sum())
        assert self._num_steps > 0, "there is no sample to train on"
        self._totals = [int(total) for total in totals]
        self._kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    @property
    def num_steps_per_epoch(self) -> int:
        """Number of steps after which every sample has been used."""
        return self._num_steps

    def step(self, step_index: int) -> StepSamples:
        """Returns the samples of a step; steps continue through the epochs without end."""
        epoch, position = divmod(step_index, self._num_steps)
        windows = self._windows(epoch)
        window = windows.of_step(position)
        bucket_index, chunk = windows.chunk(window, position)
        start = chunk * self.samples_per_step
        total = self._totals[bucket_index]
        places = (place % total for place in range(start, start + self.samples_per_step))
        samples = tuple(self._member(windows, bucket_index, place) for place in places)
        return StepSamples(epoch=epoch, bucket_index=bucket_index, samples=samples)

    def samples_until(self, num_steps: int) -> tuple[int, ...]:
        """Returns the distinct samples of the first `num_steps` steps, ascending: what a short run must encode."""
        last_step = min(num_steps, self._num_steps)
        return tuple(sorted({sample for step in range(last_step) for sample in self.step(step).samples}))

    def window_of(self, step_index: int) -> tuple[int, int]:
        """Returns the epoch and the window of a step."""
        epoch, position = divmod(step_index, self._num_steps)
        return epoch, self._windows(epoch).of_step(position)

    def windows_from(self, epoch: int, window: int) -> Iterator[tuple[int, ...]]:
        """Yields the shards of a window and of all that follow it, without end."""
        while True:
            windows = self._windows(epoch)
            for later in range(window, windows.num_windows):
                yield windows.shards(later)
            epoch, window = epoch + 1, 0

    def _windows(self, epoch: int) -> "_Windows":
        return self._keep(("windows", epoch), lambda: _Windows(self._counts, self, epoch))

    def _member(self, windows: "_Windows", bucket: int, place: int) -> int:
        window, place_in_window = windows.of_member(bucket, place)
        what = (windows.epoch, window, bucket)
        members, shuffled = self._keep(what, lambda: self._shuffled_members(windows, window, bucket))
        return int(members[shuffled[place_in_window]])

    def _shuffled_members(self, windows: "_Windows", window: int, bucket: int) -> tuple[Numbers, Permutation]:
        parts = [
            np.flatnonzero(self._codes[self._starts[shard] : self._starts[shard + 1]] == bucket) + self._starts[shard]
            for shard in windows.shards(window)
        ]
        members = np.concatenate(parts)
        return members, Permutation(len(members), self.seed, windows.epoch, _MEMBERS, window, bucket)

    def _keep(self, what: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Returns what was made for the same question recently: steps that follow each other ask the same."""
        if what in self._kept:
            self._kept.move_to_end(what)
        else:
            self._kept[what] = make()
            if len(self._kept) > max(_MOST_KEPT, 3 * self.num_buckets):
                self._kept.popitem(last=False)
        return self._kept[what]  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for another process, without what is made again when it is needed."""
        return {**self.__dict__, "_kept": OrderedDict()}


_SHARDS, _STEPS, _MEMBERS = 0, 1, 2
"""Purposes of the permutations of an epoch, so that they are independent."""


class _Windows:
    """The windows of one epoch."""

    def __init__(self, counts: Numbers, order: WindowOrder, epoch: int) -> None:
        num_shards, width = len(counts), order.shards_per_window
        shuffled = Permutation(num_shards, order.seed, epoch, _SHARDS)
        self.epoch = epoch
        self._order = order
        self._shards = np.fromiter((shuffled[place] for place in range(num_shards)), np.int64, num_shards)
        self.num_windows = -(-num_shards // width)
        per_window = np.add.reduceat(counts[self._shards], np.arange(0, num_shards, width), axis=0)
        # Ends of each window's members in the stream of a bucket, and of the steps that begin in it.
        self._member_ends = np.cumsum(per_window, axis=0)
        self._chunk_ends = -(-self._member_ends // order.samples_per_step)
        self._step_ends = self._chunk_ends.sum(axis=1)

    def shards(self, window: int) -> tuple[int, ...]:
        width = self._order.shards_per_window
        return tuple(int(shard) for shard in self._shards[window * width : (window + 1) * width])

    def of_step(self, position: int) -> int:
        return int(np.searchsorted(self._step_ends, position, side="right"))

    def of_member(self, bucket: int, place: int) -> tuple[int, int]:
        """Returns the window of a place in a bucket's stream, and its place in there."""
        ends = self._member_ends[:, bucket]
        window = int(np.searchsorted(ends, place, side="right"))
        return window, place - (int(ends[window - 1]) if window else 0)

    def chunk(self, window: int, position: int) -> tuple[int, int]:
        """Returns the bucket of a step, and its number among the steps of this bucket."""
        first_step = int(self._step_ends[window - 1]) if window else 0
        starts = self._chunk_ends[window - 1] if window else np.zeros_like(self._chunk_ends[0])
        own = self._chunk_ends[window] - starts
        shuffled = Permutation(int(own.sum()), self._order.seed, self.epoch, _STEPS, window)
        place = shuffled[position - first_step]
        ends = np.cumsum(own)
        bucket = int(np.searchsorted(ends, place, side="right"))
        return bucket, int(starts[bucket]) + place - (int(ends[bucket - 1]) if bucket else 0)
