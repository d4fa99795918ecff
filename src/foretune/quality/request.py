"""An evaluation request; everything that is left out follows from the run."""

from dataclasses import dataclass
from pathlib import Path

from foretune.choices.inference import InferenceForm
from foretune.choices.quantize import EncoderNumbers

LEVELS = (0.25, 0.5, 0.75)
"""Noise shares at which held-out images are noised and denoised: 0 is none, 1 is pure noise."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest(InferenceForm):
    """Prompts, seeds and settings of sampling, and the metrics to compute. The base of both columns is quantised."""

    against: str | None = None
    """The column "base": a model name, a folder or a run. None is the model that the run started from."""
    prompts: tuple[str, ...] = ()
    """Empty: captions of held-out images, or else the experiment's validation prompts."""
    num_prompts: int = 16
    """Maximum number of prompts if they are not given."""
    num_seeds: int = 2
    """Images per prompt."""
    first_seed: int = 0
    num_inference_steps: int | None = None
    """None: as in the experiment's validation."""
    base_num_inference_steps: int | None = None
    """For the base, if it should differ; None: as many as the run."""
    size_px: int | str | None = None
    """None: the training size."""
    guidance_scale: float | None = None
    num_held_out: int = 32
    """Maximum number of held-out images for denoising and the held-out loss."""
    metrics: tuple[str, ...] = ()
    """Empty: all. Those that do not apply are absent with a reason; if they are named here, that is an error."""
    extractor: str = "vae"
    """Extracts the features that FID and KID compare: vae, pixels, clip:WHERE or dino:WHERE."""
    clip: str | None = None
    """Folder or Hub id of a CLIP model, for the CLIP score."""
    device: str | None = None
    """None, here and in what follows: as the run was trained."""
    quantize_text_encoders: EncoderNumbers | None = None
    output: Path | None = None
    """Folder for the evaluation and its images. None: quality/ in the run directory."""
