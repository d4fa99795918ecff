"""Fixed batches for the held-out loss: the same samples, noise and timesteps for each measurement."""

import math
from collections.abc import Iterator, Sequence

from torch.utils.data import Dataset

from foretune.core.draws import Permutation, derive_seed, uniform
from foretune.data.batch import Batch, Pick
from foretune.data.buckets import Bucket
from foretune.data.grouping import bucket_of
from foretune.data.maker import BatchMaker
from foretune.data.sources.base import SampleInfo
from foretune.data.transforms import CropPlan, plan_crop

# Used in place of training's step, so that no held-out draw equals one of training's.
HELD_OUT = -1


class HeldOutBatches(Dataset[Batch]):
    """Batches by number; each contains samples of one bucket, and the last of a bucket may be smaller.

    So the loss over all of them is a mean over samples, weighted by `len(batch)`. A batch's `step` is HELD_OUT and its
    `micro` is its number. Processes can share the batches: every draw belongs to its sample, not to its position.
    """

    def __init__(self, maker: BatchMaker, indices: Sequence[int], num_repeats: int, batch_size: int) -> None:
        assert num_repeats > 0
        assert batch_size > 0
        self._maker = maker
        self._indices = indices
        self._num_repeats = num_repeats
        self._batches: list[tuple[int, list[tuple[int, int]]]] = []
        members: list[list[tuple[int, int]]] = [[] for _ in maker.buckets]
        for place, index in enumerate(indices):
            bucket_index = bucket_of(maker.source, index, maker.buckets)
            members[bucket_index].extend((place, repeat) for repeat in range(num_repeats))
        for bucket_index, places in enumerate(members):
            for start in range(0, len(places), batch_size):
                self._batches.append((bucket_index, places[start : start + batch_size]))

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def num_samples(self) -> int:
        """Over all batches, without making them."""
        return sum(len(places) for _, places in self._batches)

    def __getitem__(self, number: int) -> Batch:
        bucket_index, places = self._batches[number]
        bucket = self._maker.buckets[bucket_index]
        picks = [self._pick(place, repeat, bucket) for place, repeat in places]
        return self._maker.assembly.batch(HELD_OUT, number, bucket, picks)

    def __iter__(self) -> Iterator[Batch]:
        return (self[number] for number in range(len(self)))

    def _pick(self, place: int, repeat: int, bucket: Bucket) -> Pick:
        index, seed = int(self._indices[place]), self._maker.seed
        info = self._maker.source.info(index)
        return Pick(
            index=index,
            info=info,
            plan=held_out_plan(info, bucket),
            caption=info.caption,
            uniform=self._stratified(place, repeat, uniform(seed, "timestep", HELD_OUT, index, repeat)),
            noise_seed=derive_seed(seed, "noise", HELD_OUT, index, repeat),
            posterior_seed=derive_seed(seed, "posterior", HELD_OUT, index, repeat),
        )

    def _stratified(self, place: int, repeat: int, draw: float) -> float:
        """Moves a draw into its own stratum, so that all draws cover [0, 1) evenly.

        Repeat r of every sample is in the r-th part of the range, so each sample is used at all noise levels.
        """
        num_samples = len(self._indices)
        shuffled = Permutation(num_samples, self._maker.seed, HELD_OUT, repeat)
        stratum = repeat * num_samples + shuffled[place]
        return min((stratum + draw) / (num_samples * self._num_repeats), math.nextafter(1.0, 0.0))


def held_out_batches(
    maker: BatchMaker, indices: Sequence[int], *, num_repeats: int = 1, batch_size: int | None = None
) -> HeldOutBatches:
    """Returns the batches of the held-out samples `indices`, each used `num_repeats` times with different draws.

    `maker` is the training's: it provides source, buckets, seed and caches, and the default batch size.
    """
    return HeldOutBatches(maker, indices, num_repeats, batch_size or maker.batch_size)


def held_out_plan(info: SampleInfo, bucket: Bucket) -> CropPlan:
    """Returns a centre crop without mirroring, whatever training uses."""
    return plan_crop((info.width_px, info.height_px), bucket, "center")
