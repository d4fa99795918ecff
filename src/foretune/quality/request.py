"""What an evaluation is asked for; everything that is left out follows from the run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Precision = Literal["fp32", "bf16", "fp16"]

LEVELS = (0.25, 0.5, 0.75)
"""How much noise a held-out image is given before it is denoised again: 0 is none, 1 is nothing but noise."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """Prompts, seeds and settings of sampling, and which metrics to take."""

    against: str | None = None
    """What stands in the column "base": a model name, a folder or a run. None is the model the run started from."""
    prompts: tuple[str, ...] = ()
    """Empty: captions of images that were held out of training, or else the experiment's validation prompts."""
    num_prompts: int = 16
    """At most so many where they were not given."""
    num_seeds: int = 2
    """Images of each prompt."""
    first_seed: int = 0
    num_inference_steps: int | None = None
    """None: as the experiment validates."""
    base_num_inference_steps: int | None = None
    """Of the base, where it is to be sampled otherwise; None: as many as the run."""
    size_px: int | None = None
    """None: the size it was trained at."""
    guidance_scale: float | None = None
    num_held_out: int = 32
    """At most so many held-out images are noised, denoised and asked for their loss."""
    metrics: tuple[str, ...] = ()
    """Empty: all. Those that do not apply are absent with a reason; if they were named here, that is an error."""
    extractor: str = "vae"
    """What turns images into the numbers that FID and KID compare: vae, clip:WHERE or inception:WHERE."""
    clip: str | None = None
    """Folder or hub id of a CLIP model, for the CLIP score."""
    device: str = "auto"
    precision: Precision = "fp32"
    output: Path | None = None
    """Folder for the evaluation and its pictures. None: quality/ in the run directory."""
