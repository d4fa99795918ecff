"""Training batches: each is a pure function of its number, so that any process can make any of them."""

from dataclasses import dataclass

from torch.utils.data import Dataset

from foretune.choices.data import Data
from foretune.core.draws import derive_seed, uniform
from foretune.data.batch import Assembly, Batch, LatentShape, Pick
from foretune.data.buckets import Bucket
from foretune.data.lookup import Lookup
from foretune.data.order import StepOrder
from foretune.data.shards.ahead import ReadAhead
from foretune.data.sources.base import SampleInfo, Source
from foretune.data.sources.shards import ShardSource
from foretune.data.split import fingerprint_number
from foretune.data.transforms import CropPlan, plan_crop
from foretune.data.window_order import WindowOrder


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchMaker(Dataset[Batch]):
    """Batches by number, `step * gradient_accumulation + micro`, without end.

    The samples of a step have slots, numbered over all processes: in forward pass m, process r takes the slots from (m
    * world_size + r) * batch_size on. Flip, crop, caption dropout, posterior, noise and timestep are drawn from (seed,
    purpose, step, slot), so they depend neither on the number of processes nor on where a run is resumed. With cached
    latents a random crop is drawn once per sample, from its content, and a flip chooses between two cached entries.

    All fields must be picklable, because each worker gets a copy: `latent_shape` must be a module-level function (or a
    method of a picklable object), not a lambda.
    """

    source: Source
    order: StepOrder
    buckets: tuple[Bucket, ...]
    choice: Data
    seed: int
    batch_size: int
    latent_shape: LatentShape
    gradient_accumulation: int = 1
    rank: int = 0
    world_size: int = 1
    latents: Lookup | None = None
    text: Lookup | None = None
    has_autoencoder: bool = False
    """Whether latents are drawn from an autoencoder's distribution; cached ones always are."""

    def __post_init__(self) -> None:
        samples_per_step = self.batch_size * self.gradient_accumulation * self.world_size
        assert self.order.samples_per_step == samples_per_step
        assert self.order.num_buckets == len(self.buckets)
        assert 0 <= self.rank < self.world_size

    def __getitem__(self, micro_index: int) -> Batch:
        step, micro = divmod(micro_index, self.gradient_accumulation)
        samples = self.order.step(step)
        bucket = self.buckets[samples.bucket_index]
        first_slot = (micro * self.world_size + self.rank) * self.batch_size
        picks = [
            self._pick(samples.samples[slot], bucket, step, slot)
            for slot in range(first_slot, first_slot + self.batch_size)
        ]
        return self.assembly.batch(step, micro, bucket, picks)

    @property
    def assembly(self) -> Assembly:
        """How picked samples are assembled into a batch."""
        return Assembly(
            source=self.source,
            latent_shape=self.latent_shape,
            latents=self.latents,
            text=self.text,
            has_autoencoder=self.has_autoencoder,
        )

    def ahead(self) -> ReadAhead | None:
        """What downloads the shards of the next steps meanwhile; None where the data lie on a local disk."""
        source, order = self.source, self.order
        if not isinstance(source, ShardSource) or not isinstance(order, WindowOrder):
            return None
        return source.ahead(order, self.gradient_accumulation, reads_samples=self.latents is None)

    def _pick(self, index: int, bucket: Bucket, step: int, slot: int) -> Pick:
        info = self.source.info(index)
        # Draws are pure functions, so those without effect can be skipped.
        flip = self.choice.flip > 0 and uniform(self.seed, "flip", step, slot) < self.choice.flip
        dropout = self.choice.caption_dropout
        is_dropped = dropout > 0 and uniform(self.seed, "caption", step, slot) < dropout
        if self.choice.crop == "center":
            plan = plan_crop((info.width_px, info.height_px), bucket, "center", flip=flip)
        elif self.latents is None:
            draws = uniform(self.seed, "crop", step, slot, 0), uniform(self.seed, "crop", step, slot, 1)
            plan = plan_crop((info.width_px, info.height_px), bucket, self.choice.crop, draws, flip=flip)
        else:
            plan = cached_plan(info, bucket, self.choice, self.seed, flip=flip)
        return Pick(
            index=index,
            info=info,
            plan=plan,
            caption="" if is_dropped else info.caption,
            uniform=uniform(self.seed, "timestep", step, slot),
            noise_seed=derive_seed(self.seed, "noise", step, slot),
            posterior_seed=derive_seed(self.seed, "posterior", step, slot),
        )


def cached_plan(info: SampleInfo, bucket: Bucket, choice: Data, seed: int, *, flip: bool) -> CropPlan:
    """Returns the crop of a sample with cached latents: the same in all epochs, placed by its content."""
    if choice.crop == "center":
        return plan_crop((info.width_px, info.height_px), bucket, "center", flip=flip)
    number = fingerprint_number(info.fingerprint)
    draws = uniform(seed, "crop", number, 0), uniform(seed, "crop", number, 1)
    return plan_crop((info.width_px, info.height_px), bucket, choice.crop, draws, flip=flip)
