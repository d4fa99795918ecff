"""KID: the squared kernel distance between two sets of images (Binkowski et al. 2018).

It is unbiased: few images make it uncertain, not wrong.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from foretune.quality.measurement import Numbers
from foretune.quality.set_distance import SetDistance
from foretune.quality.setting import Setting

FEWEST_IMAGES = 32
_FEWEST_GROUPS = 3


class Kid(SetDistance):
    """KID with an interval from leaving out one prompt at a time."""

    score = "kid"

    def why_too_few(self, setting: Setting, num_training: int) -> str | None:
        num_prompts = len(setting.sampling.prompts)
        if num_prompts < _FEWEST_GROUPS:
            return f"its spread is estimated by leaving out one prompt at a time, and there are only {num_prompts}"
        if setting.num_samples < FEWEST_IMAGES:
            seeds = -(-FEWEST_IMAGES // num_prompts)
            return (
                f"it needs {FEWEST_IMAGES} samples, and there are {setting.num_samples}. "
                f"Run: foretune evaluate RUN --seeds {seeds}"
            )
        if num_training < FEWEST_IMAGES:
            return f"it needs {FEWEST_IMAGES} training images, and there are {num_training}"
        assert setting.extractor is not None
        return None

    def between(self, features: Tensor, reference: Tensor, group_sizes: list[int]) -> Numbers:
        value, pseudo = kid_by_groups(features, reference, group_sizes)
        return Numbers(value=value, groups=tuple((number,) for number in pseudo))


def kid_by_groups(features: Tensor, reference: Tensor, group_sizes: Sequence[int]) -> tuple[float, list[float]]:
    """Returns KID of all, and a value for each group whose mean has KID's spread (the jackknife's pseudo-values)."""
    within = _without_diagonal(_kernel(features, features))
    across = _kernel(features, reference)
    among = _mean_of_pairs(_without_diagonal(_kernel(reference, reference)))
    of_group = torch.repeat_interleave(torch.tensor(group_sizes))
    num = len(group_sizes)
    whole = _kid(within, across, among, torch.ones(len(features), dtype=torch.bool))
    pseudo = [num * whole - (num - 1) * _kid(within, across, among, of_group != group) for group in range(num)]
    return whole, pseudo


def _kid(within: Tensor, across: Tensor, among: float, kept: Tensor) -> float:
    return _mean_of_pairs(within[kept][:, kept]) + among - 2 * float(across[kept].mean())


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    from torchmetrics.image.kid import poly_kernel

    return poly_kernel(a.double(), b.double())


def _without_diagonal(matrix: Tensor) -> Tensor:
    return matrix - torch.diag(torch.diag(matrix))


def _mean_of_pairs(matrix: Tensor) -> float:
    """Returns the mean over all pairs of different images; the diagonal is zero."""
    num = len(matrix)
    return float(matrix.sum()) / (num * (num - 1))
