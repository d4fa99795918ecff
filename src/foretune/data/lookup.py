"""Looks up cache entries by sample and crop, or by caption."""

from dataclasses import dataclass, field

from foretune.data.buckets import Bucket
from foretune.data.cache import Entry, TensorCache
from foretune.data.recent import RecentEntries
from foretune.data.sources.base import SampleInfo
from foretune.data.transforms import CropPlan

MOMENTS = "moments"
"""Name of the mean and log-variance of a sample's latent distribution, (2C, h, w) or (2C, f, h, w). Other tensors of
its entry are what the denoiser is conditioned on beside the caption, such as a first frame."""


@dataclass(frozen=True)
class Lookup:
    """A cache with the encoder that makes its entries.

    `encoder` is the encoder's fingerprint plus everything else that changes its output: precision, text length.
    """

    cache: TensorCache
    encoder: str
    recent: RecentEntries = field(default_factory=RecentEntries, compare=False, repr=False)

    def latent_key(self, info: SampleInfo, plan: CropPlan, bucket: Bucket) -> str:
        """Returns the key of a sample's tensors, which depends only on its content, its exact crop and its frames."""
        numbers = (
            *plan.resize_px,
            plan.left_px,
            plan.top_px,
            bucket.width_px,
            bucket.height_px,
            int(plan.flip),
            # As before there were clips, so that latents of images need not be encoded again.
            *(() if bucket.num_frames is None else (bucket.num_frames,)),
        )
        return self.cache.key("latent", self.encoder, info.fingerprint, " ".join(map(str, numbers)))

    def sample(self, index: int, info: SampleInfo, plan: CropPlan, bucket: Bucket) -> Entry:
        """Returns the tensors of an image or a clip, without a batch dimension."""
        # Looked up by content and crop, not by key: hashing a key for each sample would cost more than all the rest.
        what = (info.fingerprint, plan, bucket)
        return self.recent.get(what, lambda: self.cache.get(self.latent_key(info, plan, bucket)))

    def text_key(self, caption: str) -> str:
        """Returns the key of a caption's conditioning."""
        return self.cache.key("text", self.encoder, caption)

    def conditioning(self, caption: str, index: int | None = None) -> Entry:
        """Returns a caption's tensors, without a batch dimension; `index` is a sample that has it."""
        return self.recent.get(caption, lambda: self.cache.get(self.text_key(caption)))
