"""Looks up cache entries by sample and crop, or by caption."""

from dataclasses import dataclass, field

from torch import Tensor

from foretune.data.buckets import Bucket
from foretune.data.cache import Entry, TensorCache
from foretune.data.recent import RecentEntries
from foretune.data.sources.base import SampleInfo
from foretune.data.transforms import CropPlan

# The only tensor of an image's entry: mean and log-variance of its latent distribution, (2C, h, w).
MOMENTS = "moments"


@dataclass(frozen=True)
class Lookup:
    """A cache with the encoder that makes its entries.

    `encoder` is the encoder's fingerprint plus everything else that changes its output: precision, text length.
    """

    cache: TensorCache
    encoder: str
    recent: RecentEntries = field(default_factory=RecentEntries, compare=False, repr=False)

    def latent_key(self, info: SampleInfo, plan: CropPlan, bucket: Bucket) -> str:
        """Returns the key of an image's moments, which depends only on the image's content and its exact crop."""
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
        """Returns an image's moments (2C, h, w)."""
        # Looked up by content and crop, not by key: hashing a key for each sample would cost more than all the rest.
        what = (info.fingerprint, plan, bucket)
        return self.recent.get(what, lambda: self.cache.get(self.latent_key(info, plan, bucket)))[MOMENTS]

    def text_key(self, caption: str) -> str:
        """Returns the key of a caption's conditioning."""
        return self.cache.key("text", self.encoder, caption)

    def conditioning(self, caption: str) -> Entry:
        """Returns a caption's tensors, without a batch dimension."""
        return self.recent.get(caption, lambda: self.cache.get(self.text_key(caption)))
