"""FID: the Fréchet distance between two sets of images, if their features were Gaussian (Heusel et al. 2017).

It is biased: it rises with fewer images, by more than most differences between models. Below a sound number of images
it is refused, because it would mostly reflect that number.
"""

import math

from torch import Tensor, nn

from foretune.quality.measurement import Numbers
from foretune.quality.set_distance import SetDistance
from foretune.quality.setting import Setting

FEWEST_IMAGES = 1000
IMAGES_PER_FEATURE = 2.5
"""A covariance of d features needs several times d images before its smallest directions are meaningful."""


class Fid(SetDistance):
    """FID has no interval: compare models by KID."""

    score = "fid"

    def why_too_few(self, setting: Setting, num_training: int) -> str | None:
        # The extractor is loaded only if the number of images alone is not a reason to refuse.
        num_images = min(setting.num_samples, num_training)
        needed = FEWEST_IMAGES if num_images < FEWEST_IMAGES else fewest_images(setting.extractor.num_features)
        if setting.num_samples < needed:
            seeds = math.ceil(needed / len(setting.sampling.prompts))
            return (
                f"FID of {setting.num_samples} images would mostly measure how few they are: its bias is larger than "
                f"most differences below {needed:,} images (and below {IMAGES_PER_FEATURE:g} for each feature of the "
                f"extractor). Run: foretune evaluate RUN --seeds {seeds}, or --metrics kid, which is unbiased"
            )
        if num_training < needed:
            return (
                f"there are {num_training:,} training images to compare with, and it needs {needed:,}. "
                "Run: foretune evaluate RUN --metrics kid, which is unbiased"
            )
        return None

    def repeats_over(self, setting: Setting) -> str:
        return "samples"

    def between(self, features: Tensor, reference: Tensor, group_sizes: list[int]) -> Numbers:
        return Numbers(value=fid(features, reference))


def fewest_images(num_features: int) -> int:
    """Returns the number of images that FID needs on each side."""
    return max(FEWEST_IMAGES, math.ceil(IMAGES_PER_FEATURE * num_features))


def fid(features: Tensor, reference: Tensor) -> float:
    """Returns the Fréchet distance of two sets of features."""
    from torchmetrics.image.fid import FrechetInceptionDistance

    metric = FrechetInceptionDistance(feature=_Given(features.shape[1]))
    metric.update(reference.double(), real=True)
    metric.update(features.double(), real=False)
    return float(metric.compute())


class _Given(nn.Module):
    """Features that were extracted before."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, features: Tensor) -> Tensor:
        return features
