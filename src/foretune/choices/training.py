"""How long, how much at once, with which numbers; and what the loss is."""

from typing import Literal, Self

from pydantic import Field, model_validator

from foretune.choices.section import Section

Precision = Literal["fp32", "bf16", "fp16"]


class Ema(Section):
    """A moving average of the trained weights, kept beside them and exported in their place."""

    decay: float = Field(default=0.999, gt=0, lt=1)


class Train(Section):
    """Length, batch and numerics of the training."""

    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the data, instead of steps."""
    batch_size: int = Field(default=1, ge=1)
    """Samples in one forward pass on one device."""
    gradient_accumulation: int = Field(default=1, ge=1)
    """Forward passes that make one optimizer step."""
    precision: Precision = "bf16"
    """Numbers of the forward and backward pass. Trained weights and optimizer states are fp32 in all three."""
    loss_scaling: Literal["dynamic", "off"] = "dynamic"
    """fp16 only: gradients are scaled so that small ones do not vanish."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm; null leaves them as they are."""
    ema: Ema | None = None

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs")
        return self


class ObjectiveChoice(Section):
    """What the loss asks of the model. Everything left out is the family's own."""

    timestep_density: Literal["uniform", "logit_normal", "mode"] | None = None
    """Flow matching: how often each noise level is drawn."""
    logit_mean: float = 0.0
    logit_std: float = Field(default=1.0, gt=0)
    mode_scale: float = 1.29
    shift: float | None = Field(default=None, gt=0)
    """Flow matching: moves noise levels up; 1 leaves them. Left out: the checkpoint's scheduler decides."""
    weighting: Literal["none", "sigma_sqrt", "cosmap"] | None = None
    """Flow matching: weight of each noise level in the loss."""
    guidance_scale: float = Field(default=3.5, ge=0)
    """What a guidance-distilled model (FLUX.1-dev) is told in training."""


class Optimizer(Section):
    """How gradients become new weights."""

    kind: Literal["adamw"] = "adamw"
    lr: float = Field(default=1e-4, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: kept, or brought to zero at the last step."""
    warmup_steps: int = Field(default=0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=1e-2, ge=0)


class Levers(Section):
    """What trades speed for memory."""

    gradient_checkpointing: float = Field(default=0.0, ge=0, le=1)
    """Share of the repeated blocks whose activations are computed again instead of kept."""
    cache_latents: bool = True
    """Encode images once, before training, and free the autoencoder."""
    cache_text: bool = True
    """Encode captions once, before training, and free the text encoders."""
