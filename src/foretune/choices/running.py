"""What happens around the training: validation, saving, devices, trackers."""

from typing import Annotated, Literal

from pydantic import Field

from foretune.choices.section import INCIDENTAL, LATER, Section

Tracker = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class Validate(Section):
    """Looking at the model while it trains. A failed validation never ends the training."""

    every: Annotated[int | None, INCIDENTAL] = Field(default=None, ge=1)
    """Steps between validations. Left out: before the first and after the last step only."""
    prompts: tuple[str, ...] = ()
    """Captions to sample from; models without text take one unconditional sample for each entry."""
    num_inference_steps: int = Field(default=28, ge=1)
    """Denoising steps of each sample."""
    guidance_scale: float | None = Field(default=None, ge=0)
    """Guidance when sampling. Left out: the pipeline's own."""
    num_held_out: int = Field(default=32, ge=0)
    """Held-out samples in the held-out loss; 0 switches it off."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Decides the noise of samples and of the held-out loss."""


class Profile(Section):
    """A look inside a few steps while the run goes on. A profiler that fails never ends the training."""

    at_step: int = Field(default=20, ge=1)
    """The first step that is looked at, counted from 1; give the run time to become steady."""
    steps: int = Field(default=3, ge=1, le=100)
    """How many steps are looked at."""


class Save(Section):
    """Checkpoints."""

    every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints. Left out: after the last step only."""
    keep: int = Field(default=2, ge=1)
    """How many of the newest checkpoints stay."""


class Parallel(Section):
    """Where it runs."""

    devices: int = Field(default=1, ge=1)
    """How many devices take part."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto takes an accelerator if there is one."""
    threads: Annotated[int | None, LATER] = Field(default=None, ge=1)
    """Threads with which a CPU computes. Left out: torch decides, or OMP_NUM_THREADS."""
