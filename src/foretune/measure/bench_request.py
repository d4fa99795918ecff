"""What the process of one repeat is asked: plain data, so that it can be sent to it."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from foretune.choices.inference import MeasuredForm
from foretune.choices.training import Precision

WORKER = "foretune.measure.bench_worker"
"""The module that answers these requests, in a process of its own."""


@dataclass(frozen=True)
class Preset:
    """A setting under a name."""

    batch_size: int
    precision: Precision
    about: str


PRESETS = {
    "classical": Preset(256, "fp32", "batch 256 in fp32, as papers on diffusion models compare them"),
}


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """A fixed number of training steps of one experiment."""

    worker: ClassVar[str] = WORKER
    asked: dict[str, Any]
    """The experiment, as `only_steps` leaves it."""
    directory: str
    """Where the run directory is made, in `folder`."""
    folder: str = "runs"
    about: dict[str, Any] | None = None
    """What else the run directory should say of it, such as which part of which study it is."""
    is_synthetic: bool = False
    has_random_weights: bool = False
    """Synthetic data alone: the model's weights are random, and nothing of it is downloaded."""
    plan: dict[str, Any] | None = None
    """The forecast, to be kept with the run."""
    model_flops: float | None = None
    """Of one optimizer step."""
    memory_limit_bytes: int | None = None
    """Most host memory that the process may take; None leaves it to the system."""

    def to_mapping(self) -> dict[str, Any]:
        return {"kind": "training", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class InferenceRequest(MeasuredForm):
    """A number of denoising steps of one model, or a number of images."""

    worker: ClassVar[str] = WORKER
    model: str
    """A folder in the diffusers layout, or a run directory."""
    adapter: str | None = None
    size_px: int | str | None = None
    num_frames: int | None = None
    num_steps: int = 20
    """Denoising steps that are timed; for images, the denoising steps of each."""
    num_images: int = 0
    """Batches of images that are timed end to end; 0 times denoising steps alone."""
    images_file: str | None = None
    """Where the images are stored, as tensors; None throws them away."""
    device: str = "auto"
    threads: int | None = None
    """Of a CPU; None leaves it to torch."""
    memory_limit_bytes: int | None = None
    """Most host memory that the process may take on a CPU; other devices have their own memory."""

    def to_mapping(self) -> dict[str, Any]:
        return {"kind": "inference", **asdict(self)}


def with_lever(mapping: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The same experiment with another setting of one lever."""
    return {**mapping, "levers": {**mapping.get("levers", {}), key: value}}
