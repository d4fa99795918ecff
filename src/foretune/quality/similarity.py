"""How closely a held-out image is restored after noising and denoising with its caption: PSNR, SSIM, MS-SSIM, LPIPS.

Of clips, each frame is compared by itself, and the mean over its frames is a clip's value.

The autoencoder, which both columns share, limits what can be reached; the difference is the denoiser's.
"""

from abc import abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from foretune.data.buckets import Bucket
from foretune.quality.evidence import SampledEvidence, as_batch
from foretune.quality.measurement import Need, Numbers, OneScore
from foretune.quality.setting import Setting
from foretune.training.sampling import Pixels, is_clip

_NO_TORCHMETRICS = "torchmetrics is not installed. Run: pip install 'foretune[quality]'"
MOST_DB = 100.0
"""PSNR of equal images would be infinite and have no mean."""
_SSIM_LEAST_PX = 11
_MS_SSIM_LEAST_PX = 161
_AT_ONCE = 32


def why_not_installed() -> str | None:
    """Returns why the metrics library is not available, if so."""
    return _NO_TORCHMETRICS if find_spec("torchmetrics") is None else None


class Similarity(OneScore):
    """One value for each pair of images, at each noise level."""

    needs: ClassVar[frozenset[Need]] = frozenset({"denoised"})

    @abstractmethod
    def compare(self, images: Tensor, truth: Tensor) -> Tensor:
        """Returns one value per pair, for batches (N, 3, H, W) in [0, 1]."""

    def why_absent(self, setting: Setting) -> str | None:
        return why_not_installed() or setting.why_no_held_out() or self.why_not_at(setting.sampling.size)

    def why_not_at(self, size: Bucket) -> str | None:
        """Returns why images of this size cannot be compared."""
        return None

    def repeats_over(self, setting: Setting) -> str:
        return setting.held_out_items

    def numbers(self, setting: Setting, column: SampledEvidence) -> Numbers:
        assert setting.data is not None, "held-out images come from data"
        truth = setting.data.held_out_images
        by_level = {level: self.pairs(images, truth) for level, images in column.denoised.items()}
        return Numbers(
            groups=tuple(zip(*by_level.values(), strict=True)),
            bands={f"noise {level:g}": fmean(values) for level, values in by_level.items()},
        )

    def pairs(self, images: Sequence[Pixels], truth: Sequence[Pixels]) -> list[float]:
        """Returns one value for each pair of images or clips."""
        if is_clip(truth[0]):
            return [fmean(self.pairs(tuple(clip), tuple(true))) for clip, true in zip(images, truth, strict=True)]
        found: list[float] = []
        for start in range(0, len(truth), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            found += self.compare(as_batch(images[part]), as_batch(truth[part])).tolist()
        return found


class Psnr(Similarity):
    """Peak signal-to-noise ratio: the mean squared error of pixels, in decibels."""

    score = "psnr"

    def compare(self, images: Tensor, truth: Tensor) -> Tensor:
        from torchmetrics.functional.image import peak_signal_noise_ratio

        ratio = peak_signal_noise_ratio(images, truth, data_range=1.0, reduction="none", dim=(1, 2, 3))
        return ratio.clamp(max=MOST_DB)


class Ssim(Similarity):
    """Structural similarity (Wang et al. 2004), Gaussian window of 11 pixels."""

    score = "ssim"

    def compare(self, images: Tensor, truth: Tensor) -> Tensor:
        from torchmetrics.functional.image import structural_similarity_index_measure

        answer = structural_similarity_index_measure(images, truth, data_range=1.0, reduction="none")
        assert isinstance(answer, Tensor)
        return answer.reshape(-1)

    def why_not_at(self, size: Bucket) -> str | None:
        if size.shorter_px < _SSIM_LEAST_PX:
            return f"images of {size.text} are smaller than its window of {_SSIM_LEAST_PX} px"
        return None


class MsSsim(Similarity):
    """Structural similarity at five sizes, each half the one before (Wang et al. 2003)."""

    score = "ms-ssim"

    def compare(self, images: Tensor, truth: Tensor) -> Tensor:
        from torchmetrics.functional.image import multiscale_structural_similarity_index_measure

        return multiscale_structural_similarity_index_measure(images, truth, data_range=1.0, reduction="none").reshape(
            -1
        )

    def why_not_at(self, size: Bucket) -> str | None:
        if size.shorter_px < _MS_SSIM_LEAST_PX:
            return (
                f"images of {size.text} are too small: it halves them four times, and its window of 11 px must still "
                f"fit, so that it needs {_MS_SSIM_LEAST_PX} px"
            )
        return None


class Lpips(Similarity):
    """Learned perceptual distance (Zhang et al. 2018); its backbone is torchvision's AlexNet, which is downloaded."""

    score = "lpips"

    def why_absent(self, setting: Setting) -> str | None:
        if find_spec("torchvision") is None:
            return (
                "its trunk is torchvision's AlexNet, and torchvision is not installed. Run: pip install torchvision "
                "(the build that fits your torch); it downloads the trunk's weights, 233 MiB, when it is first used"
            )
        return super().why_absent(setting)

    def compare(self, images: Tensor, truth: Tensor) -> Tensor:
        from torchmetrics.functional.image import learned_perceptual_image_patch_similarity

        with torch.no_grad():
            found = [
                learned_perceptual_image_patch_similarity(image[None], true[None], net_type="alex", normalize=True)
                for image, true in zip(images, truth, strict=True)
            ]
        return torch.stack(found).reshape(-1)


def likeness(file: Path, reference: Path) -> dict[str, float]:
    """Returns the mean PSNR and SSIM between the images of two files, in their order; empty where it is not possible.

    The files are safetensors with one tensor, `images`, of (N, 3, H, W) in [0, 1], or of clips.
    """
    if why_not_installed() is not None:
        return {}
    images, truth = (_stored_images(one) for one in (file, reference))
    return {
        metric.score: float(metric.compare(images, truth).mean())
        for metric in (Psnr(), Ssim())
        if metric.score == "psnr" or min(images.shape[-2:]) >= _SSIM_LEAST_PX
    }


def _stored_images(file: Path) -> Tensor:
    images: Tensor = load_file(file)["images"]
    return images.flatten(0, -4).clamp(0, 1)
