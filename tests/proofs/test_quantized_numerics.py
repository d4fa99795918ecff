"""A quantised base against bf16 at the same seed: the loss while an adapter trains, and samples afterwards.

The tiny models are random, so samples are textures, not pictures; what they show is how far rounding carries through
all layers and sampling steps. Random blocks hardly change what passes by them, so their weights are made larger first.
The distance of bf16 from fp32 is the yardstick. A base of four levels a row, which no one would train, is the control.
"""

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretune.data.buckets import Bucket
from foretune.models.locating import open_family
from foretune.training.encoding import encode_captions
from foretune.training.sampling import SampleRequest, sample
from tests.conftest import ProofSize
from tests.step.small_steps import NUM_TEXT_TOKENS, SmallStep, made_batch, small_step

pytestmark = pytest.mark.proof

KINDS = ("int8", "float8", "float8-dynamic", "float8-training", "nf4", "int8-bnb")
CONTROL = "four levels"
PROMPTS = ("a red square on grass", "two blue circles")
NUM_BATCHES, BATCH_SIZE, LEARNING_RATE = 8, 2, 2e-3


@dataclass(frozen=True)
class Outcome:
    """What one training gave."""

    losses: tuple[float, ...]
    images: Tensor
    """One for each prompt: channels, height, width, in [0, 1]."""

    def loss_distance(self, other: "Outcome") -> float:
        """Mean distance of the losses, step by step, as a share of the other's."""
        return fmean(abs(a - b) / b for a, b in zip(self.losses, other.losses, strict=True))


def louder(folder: Path, target: Path) -> Path:
    """The same pipeline with larger weights in the blocks: these are then what decides its answer."""
    shutil.copytree(folder, target)
    family = open_family(folder)
    denoiser: Any = family.load_denoiser(folder, torch.float32)
    for block in family.blocks(denoiser):
        for layer in block.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.data *= 3
    denoiser.save_pretrained(target / family.denoiser_part)
    return target


def train(folder: Path, num_steps: int, kind: str = "none", precision: str = "bf16") -> Outcome:
    small = small_step(
        folder,
        {"kind": "lora", "rank": 8},
        train={"precision": precision},
        quantize={"denoiser": "none" if kind == CONTROL else kind},
    )
    if kind == CONTROL:
        round_to_four_levels(small)
    batches = [made_batch(small.family, BATCH_SIZE, seed=seed) for seed in range(NUM_BATCHES)]
    losses = [float(small.step(n, LEARNING_RATE, [batches[n % NUM_BATCHES]], 1).loss) for n in range(num_steps)]
    return Outcome(tuple(losses), images_of(small, folder))


def round_to_four_levels(small: SmallStep) -> None:
    """Every weight that would be quantised becomes one of four, spread evenly over its row's range."""
    for block in small.family.blocks(small.method.denoiser):
        for layer in block.modules():
            if isinstance(layer, nn.Linear) and not layer.weight.requires_grad:
                step = layer.weight.abs().amax(dim=1, keepdim=True) / 2
                layer.weight.data = ((layer.weight / step - 0.5).round().clamp(-2, 1) + 0.5) * step


def images_of(small: SmallStep, folder: Path) -> Tensor:
    pipeline = small.family.load_pipeline(folder, torch.float32, **{small.family.denoiser_part: small.step.denoiser})
    request = SampleRequest(
        prompts=PROMPTS, seed=0, num_inference_steps=8, size=Bucket(64, 64), num_text_tokens=NUM_TEXT_TOKENS
    )
    captions = encode_captions(small.family, pipeline, [*PROMPTS, ""], NUM_TEXT_TOKENS)
    dtype = small.step.policy.compute_dtype
    *encoded, unconditional = [{name: t[None].to(dtype) for name, t in caption.items()} for caption in captions]
    small.step.denoiser.eval()
    with small.step.policy.autocast("cpu"):
        images = sample(small.family, pipeline, request, encoded, unconditional)
    return torch.stack([torch.from_numpy(image).permute(2, 0, 1) for image in images])


def psnr_db(a: Tensor, b: Tensor) -> float:
    return -10 * math.log10(float((a - b).square().mean()))


def ssim(a: Tensor, b: Tensor) -> float:
    """Structural similarity with a Gaussian window of 11 pixels (Wang et al., 2004), over images in [0, 1]."""
    places = torch.arange(11.0) - 5
    line = torch.exp(-places.square() / (2 * 1.5**2))
    window = torch.outer(line, line) / line.sum().square()

    def smooth(images: Tensor) -> Tensor:
        return F.conv2d(images.flatten(0, 1)[:, None], window[None, None])

    mean_a, mean_b = smooth(a), smooth(b)
    var_a, var_b = smooth(a * a) - mean_a**2, smooth(b * b) - mean_b**2
    covariance = smooth(a * b) - mean_a * mean_b
    lightness = (2 * mean_a * mean_b + 0.01**2) / (mean_a**2 + mean_b**2 + 0.01**2)
    structure = (2 * covariance + 0.03**2) / (var_a + var_b + 0.03**2)
    return float((lightness * structure).mean())


def test_the_measures_of_images_are_right() -> None:
    image = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert ssim(image, image) == pytest.approx(1)
    assert psnr_db(image, image + 0.1) == pytest.approx(20, abs=1e-3)
    assert ssim(image, 1 - image) < -0.5


@pytest.mark.takes_turns
def test_quantised_bases_train_and_sample_like_bf16(
    tiny_pipeline: Callable[..., Path], tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    num_steps = proof_size(100, 10)
    for name in ("flux", "sd3")[: proof_size(2, 1)]:
        folder = louder(tiny_pipeline(name), tmp_path / name)
        base = train(folder, num_steps)
        found = {"fp32": train(folder, num_steps, precision="fp32")}
        found |= {kind: train(folder, num_steps, kind) for kind in (*KINDS, CONTROL)}
        rows = {
            kind: (100 * one.loss_distance(base), psnr_db(one.images, base.images), ssim(one.images, base.images))
            for kind, one in found.items()
        }
        for kind, (off_percent, decibels, similarity) in rows.items():
            report_figure(
                f"{name}, {num_steps} steps, {kind:15} against bf16: loss {off_percent:5.2f} % off, "
                f"samples {decibels:4.1f} dB PSNR, {similarity:.4f} SSIM"
            )
        bad_percent, bad_decibels, bad_similarity = rows[CONTROL]
        for kind in KINDS:
            off_percent, decibels, similarity = rows[kind]
            assert off_percent < bad_percent / 2, (name, kind)
            assert decibels > bad_decibels + 5, (name, kind)
            assert similarity > bad_similarity, (name, kind)
        assert rows["int8"][1] > rows["float8"][1] > rows["nf4"][1], name
