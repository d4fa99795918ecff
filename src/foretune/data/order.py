"""The samples of each step, computed without iterating over other steps."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from foretune.core.draws import Permutation


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSamples:
    """The samples of one optimizer step, over all processes and forward passes, all of one bucket."""

    epoch: int
    bucket_index: int
    samples: tuple[int, ...]


class StepOrder(Protocol):
    """The samples of every step, as a pure function of its number."""

    @property
    def num_buckets(self) -> int: ...

    @property
    def samples_per_step(self) -> int: ...

    @property
    def num_steps_per_epoch(self) -> int: ...

    def step(self, step_index: int) -> StepSamples: ...

    def samples_until(self, num_steps: int) -> tuple[int, ...]: ...


class Order:
    """The order of all steps, without state or lists: step ten million costs as much as step 0.

    In each epoch the members of a bucket are shuffled and split into chunks of `samples_per_step`; then the chunks of
    all buckets are shuffled. A bucket's last chunk is filled up from the start of the same shuffled bucket, so in an
    epoch every member is used once, and up to samples_per_step - 1 of a bucket once more (a bucket smaller than a step
    is repeated several times).
    """

    def __init__(self, members_per_bucket: Sequence[Sequence[int]], samples_per_step: int, seed: int) -> None:
        assert samples_per_step > 0
        self.members_per_bucket = tuple(members_per_bucket)
        self.samples_per_step = samples_per_step
        self.seed = seed
        num_chunks = [-(-len(members) // samples_per_step) for members in self.members_per_bucket]
        # End of each bucket's chunks in the numbering of all chunks.
        self._ends = list(accumulate(num_chunks))
        assert self._ends, "there is no bucket"
        assert self._ends[-1] > 0, "there is no sample to train on"

    @property
    def num_buckets(self) -> int:
        """Number of buckets, empty ones included."""
        return len(self.members_per_bucket)

    @property
    def num_steps_per_epoch(self) -> int:
        """Number of steps after which every sample has been used."""
        return self._ends[-1]

    def step(self, step_index: int) -> StepSamples:
        """Returns the samples of a step; steps continue through the epochs without end."""
        epoch, position = divmod(step_index, self.num_steps_per_epoch)
        chunk = Permutation(self.num_steps_per_epoch, self.seed, epoch)[position]
        # An empty bucket ends where the previous one ends, and is skipped.
        bucket_index = bisect_right(self._ends, chunk)
        members = self.members_per_bucket[bucket_index]
        first_chunk = self._ends[bucket_index - 1] if bucket_index else 0
        start = (chunk - first_chunk) * self.samples_per_step
        shuffled = Permutation(len(members), self.seed, epoch, bucket_index)
        samples = tuple(
            int(members[shuffled[place % len(members)]]) for place in range(start, start + self.samples_per_step)
        )
        return StepSamples(epoch=epoch, bucket_index=bucket_index, samples=samples)

    def samples_until(self, num_steps: int) -> tuple[int, ...]:
        """Returns the distinct samples of the first `num_steps` steps, ascending: what a short run must encode."""
        # After an epoch all samples have been used.
        last_step = min(num_steps, self.num_steps_per_epoch)
        return tuple(sorted({sample for step in range(last_step) for sample in self.step(step).samples}))
