"""How long, how much at once, with which numbers; and what the loss is."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from foretune.choices.section import INCIDENTAL, LATER, Section

Precision = Literal["fp32", "bf16", "fp16"]
WeightNumbers = Literal["fp32", "bf16"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Ema(Section):
    """A moving average of the trained weights, kept beside them and exported in their place."""

    decay: float = Field(default=0.999, gt=0, lt=1)
    """Share of the average that stays at each step."""


class Train(Section):
    """Length, batch and numerics of the training."""

    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the data, instead of steps."""
    # Of the next two the product counts, times the devices: it makes one optimizer step.
    batch_size: Annotated[int, INCIDENTAL] = Field(default=1, ge=1)
    """Samples in one forward pass on one device."""
    gradient_accumulation: Annotated[int, INCIDENTAL] = Field(default=1, ge=1)
    """Forward passes that make one optimizer step."""
    precision: Precision = "bf16"
    """Numbers of the forward and backward pass; frozen weights are kept in them too."""
    weights: Annotated[WeightNumbers, LATER] = "fp32"
    """Numbers of the trained weights, their gradients and the optimizer's states: 16 bytes a weight in fp32, 8 in bf16.
    bf16 goes with precision bf16; updates below about 1/256 of a weight are lost in it, unless compensated."""
    loss_scaling: Literal["dynamic", "off"] = "dynamic"
    """fp16 only: gradients are scaled so that small ones do not vanish."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Decides every random draw: order, crop, noise, timestep, dropout."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm; null leaves them as they are."""
    ema: Ema | None = None
    """Left out: no moving average."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.steps is None and self.epochs is None:
            raise ValueError("needs steps (optimizer steps) or epochs (passes over the data)")
        if self.steps is not None and self.epochs is not None:
            raise ValueError("has both steps and epochs; take one away (on the command line: train.steps=null)")
        return self


class ObjectiveChoice(Section):
    """What the loss asks of the model. Everything left out is the family's own."""

    timestep_density: Literal["uniform", "logit_normal", "mode"] | None = None
    """Flow matching: how often each noise level is drawn."""
    logit_mean: float = 0.0
    """logit_normal only: higher draws noisier levels more often."""
    logit_std: float = Field(default=1.0, gt=0)
    """logit_normal only: how widely the levels spread."""
    mode_scale: float = 1.29
    """mode only: how strongly the middle levels are preferred."""
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
    """Learning rate after the warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What becomes of the learning rate after the warm-up: kept, or brought to zero at the last step."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps in which the learning rate rises from zero."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of the averages of gradients and of their squares."""
    eps: float = Field(default=1e-8, gt=0)
    """Keeps the division by small squares finite."""
    weight_decay: float = Field(default=1e-2, ge=0)
    """Share of each weight, times the learning rate, that is taken off at each step."""
    compensation: Annotated[Literal["none", "kahan"], LATER] = "none"
    """bf16 weights only: kahan keeps what rounding takes from each update in a third state, 2 bytes a weight."""


class Levers(Section):
    """What trades speed for memory. The levers here do not change what is computed, so they are incidental."""

    gradient_checkpointing: Annotated[float, INCIDENTAL] = Field(default=0.0, ge=0, le=1)
    """Share of the repeated blocks whose activations are computed again instead of kept."""
    cache_latents: Annotated[bool, INCIDENTAL] = True
    """Encode images once, before training, and free the autoencoder."""
    cache_text: Annotated[bool, INCIDENTAL] = True
    """Encode captions once, before training, and free the text encoders."""
