"""Entries of the cache as a run asks for them: by sample and cut, or by caption."""

from dataclasses import dataclass, field

from torch import Tensor

from foretune.data.buckets import Bucket
from foretune.data.cache import Entry, TensorCache
from foretune.data.recent import RecentEntries
from foretune.data.sources.base import SampleInfo
from foretune.data.transforms import CropPlan

# The one tensor of an image's entry: mean and log-variance of its latent distribution, (2C, h, w).
MOMENTS = "moments"


@dataclass(frozen=True)
class Lookup:
    """A cache together with the encoder that its entries are made by.

    `encoder` is the encoder's fingerprint and whatever else changes what it makes: precision, text length.
    """

    cache: TensorCache
    encoder: str
    recent: RecentEntries = field(default_factory=RecentEntries, compare=False, repr=False)

    def latent_key(self, info: SampleInfo, plan: CropPlan, bucket: Bucket) -> str:
        """The key of an image's moments: the image's content and exactly how it is cut, nothing else."""
        numbers = (
            *plan.resize_px,
            plan.left_px,
            plan.top_px,
            bucket.width_px,
            bucket.height_px,
            int(plan.flip),
        )
        return self.cache.key("latent", self.encoder, info.fingerprint, " ".join(map(str, numbers)))

    def moments(self, info: SampleInfo, plan: CropPlan, bucket: Bucket) -> Tensor:
        """An image's moments (2C, h, w)."""
        # Asked for by what it is, not by its key: hashing that for each sample would cost more than all the rest.
        what = (info.fingerprint, plan, bucket)
        return self.recent.get(what, lambda: self.cache.get(self.latent_key(info, plan, bucket)))[MOMENTS]

    def text_key(self, caption: str) -> str:
        """The key of a caption's conditioning."""
        return self.cache.key("text", self.encoder, caption)

    def conditioning(self, caption: str) -> Entry:
        """A caption's tensors, each without a batch dimension."""
        return self.recent.get(caption, lambda: self.cache.get(self.text_key(caption)))
