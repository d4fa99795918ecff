"""Whether samples are copies of training images.

The distance to the nearest training image says little by itself: a plain image is near to many. A copy is near to one
and far from all others, so the nearest distance is divided by the second nearest. The same ratio for held-out images,
which cannot be copies, is the reference level.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor, nn

from foretune.core.units import counted_text
from foretune.quality.evidence import SampledEvidence, as_batch
from foretune.quality.measurement import Need, Numbers, ScoreReading
from foretune.quality.setting import Setting
from foretune.training.sampling import Pixels, is_clip

_COMPARED_PX = 32
"""Maximum size for comparing images: a copy is one at any size, and a million distances must not take long."""
_FEWEST_TRAINING_IMAGES = 3
_FEWEST_HELD_OUT = 10


class Memorisation:
    """The share of samples that are nearer to one training image than any held-out image is, and the mean ratio."""

    needs: ClassVar[frozenset[Need]] = frozenset({"samples"})

    def why_absent(self, setting: Setting) -> str | None:
        why = setting.why_no_held_out()
        if why is not None:
            return why
        assert setting.data is not None
        if len(setting.data.held_out) < _FEWEST_HELD_OUT:
            held_out = counted_text(len(setting.data.held_out), setting.held_out_items)
            return f"{held_out} are too few to show how similar new ones are to others: {_FEWEST_HELD_OUT} are needed"
        if len(setting.data.train) < _FEWEST_TRAINING_IMAGES:
            return "there are fewer than three training images, too few to compare the nearest two"
        return None

    def measure(
        self, setting: Setting, column: SampledEvidence, base: SampledEvidence | None
    ) -> tuple[ScoreReading, ...]:
        assert setting.data is not None
        training = flattened(setting.data.training_images)
        reference = nearest_ratios(setting.data.held_out_images, training)
        ratios = tuple(tuple(nearest_ratios(images, training)) for images in column.samples)
        limit = min(reference)
        copies = Numbers(
            groups=tuple(tuple(float(ratio < limit) for ratio in group) for group in ratios),
            # By chance alone, one of len(reference) + 1 images is nearer than all others.
            bands={f"{setting.held_out_items}, by chance": 1 / (len(reference) + 1)},
        )
        nearest = Numbers(groups=ratios, bands={setting.held_out_items: fmean(reference)})
        return (
            ScoreReading.of("copies", setting.repeats_over, copies),
            ScoreReading.of("nearest ratio", setting.repeats_over, nearest),
        )


def nearest_ratios(images: Sequence[Pixels], training: Tensor) -> list[float]:
    """Returns each image's distance to the nearest training image over that to the second nearest. 0 is a copy."""
    distances = torch.cdist(flattened(images), training)
    nearest, second = distances.topk(2, largest=False).values.unbind(dim=1)
    return (nearest / second.clamp(min=1e-12)).clamp(max=1.0).tolist()


def flattened(images: Sequence[Pixels]) -> Tensor:
    """Returns images or clips as rows of pixel values, downscaled if needed."""
    if is_clip(images[0]):
        return torch.stack([flattened(tuple(clip)).flatten() for clip in images])
    batch = as_batch(images)
    side = min(_COMPARED_PX, *batch.shape[-2:])
    return nn.functional.adaptive_avg_pool2d(batch, side).flatten(1)
