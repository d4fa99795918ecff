"""A pipeline small enough for a laptop's CPU, and large enough that its weights show in memory and time."""

from pathlib import Path

import torch

from foretune.models.tiny import write_tiny_pipeline

_CHANGES = {"num_layers": 2, "num_single_layers": 4, "attention_head_dim": 64, "num_attention_heads": 8}
_AXES = (16, 24, 24)


def small_flux(directory: Path, seed: int = 0) -> Path:
    """A FLUX with random weights, 512 wide: about 25 million weights, beside the tiny one's encoders."""
    from diffusers import FluxTransformer2DModel

    write_tiny_pipeline("flux", directory, seed=seed)
    config = dict(FluxTransformer2DModel.load_config(directory / "transformer"))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        transformer = FluxTransformer2DModel.from_config({**config, **_CHANGES, "axes_dims_rope": _AXES})
    transformer.save_pretrained(directory / "transformer", safe_serialization=True)
    return directory


def write_pictures(directory: Path, num: int = 32, side_px: int = 1024) -> Path:
    """JPEG files as large as a photograph: reading one takes about as long as a small model's step."""
    import numpy as np
    from PIL import Image

    directory.mkdir(parents=True)
    ramp = np.linspace(0, 4 * np.pi, side_px)
    for number in range(num):
        waves = np.sin(ramp * (1 + number / num))[:, None] + np.cos(ramp)[None, :]
        noise = np.random.default_rng(number).normal(0, 0.1, (side_px, side_px, 3))
        pixels = ((waves[..., None] / 4 + 0.5 + noise).clip(0, 1) * 255).astype(np.uint8)
        Image.fromarray(pixels).save(directory / f"{number:03d}.jpg", quality=90)
    return directory


def experiment_on(
    folder: Path, name: str, *, resolution: int | None = 64, batch_size: int = 1, precision: str = "fp32"
) -> dict[str, object]:
    """An experiment of a study: LoRA, short captions, nothing around the steps."""
    return {
        "name": name,
        "model": str(folder),
        "method": {"kind": "lora", "rank": 16},
        "data": {
            "kind": "shapes",
            "num_samples": 256,
            "resolution": resolution,
            "max_text_tokens": 32,
            "cache_dir": str(folder.parent / "cache"),
        },
        "train": {"steps": 1, "batch_size": batch_size, "precision": precision},
    }
