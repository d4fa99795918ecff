"""How long, how much at once, with which numbers; and what the loss is."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from foretune.choices.section import INCIDENTAL, LATER, Section

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Clock = Literal["steps", "run"]
OptimizerKind = Literal[
    "adamw", "adamw8bit", "paged-adamw8bit", "lion", "lion8bit", "adafactor", "prodigy", "schedule-free"
]
WeightNumbers = Literal["fp32", "bf16"]
Compensation = Literal["none", "kahan", "stochastic"]
OffloadParts = Literal["blocks", "attention"]
CheckpointParts = Literal["blocks", "feed_forward"]
AttentionBackend = Literal["auto", "math", "efficient", "flash", "cudnn"]
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
    seconds: Annotated[float | None, LATER] = Field(default=None, gt=0)
    """Training time instead of steps: no step begins after it. The learning rate stays constant after its warm-up."""
    clock: Annotated[Clock, LATER] = "steps"
    """What the seconds count. steps: only the time inside optimizer steps, waiting for data included. run: everything
    from the first step on, validation and saving included. What comes before the first step is counted by neither."""
    # Of the next two the product counts, times the devices: it makes one optimizer step.
    batch_size: Annotated[int, INCIDENTAL] = Field(default=1, ge=1)
    """Samples in one forward pass on one device."""
    gradient_accumulation: Annotated[int, INCIDENTAL] = Field(default=1, ge=1)
    """Forward passes that make one optimizer step."""
    precision: Precision = "bf16"
    """Numbers of the forward and backward pass; frozen weights are kept in them too. tf32 is fp32 whose products are
    rounded to 10 bits (NVIDIA, Ampere and newer)."""
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
        given = [name for name in ("steps", "epochs", "seconds") if getattr(self, name) is not None]
        if not given:
            raise ValueError("needs steps (optimizer steps), epochs (passes over the data) or seconds (training time)")
        if len(given) > 1:
            listed = f"both {' and '.join(given)}" if len(given) == 2 else "steps, epochs and seconds"  # noqa: PLR2004
            raise ValueError(f"has {listed}; keep one of them (on the command line: train.{given[0]}=null)")
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

    kind: OptimizerKind = "adamw"
    """Bytes of its states for each trained weight: adamw 8, adamw8bit 2, paged-adamw8bit 2 (moved to the host when the
    device is full), lion 4, lion8bit 1, adafactor almost none, prodigy 16 (finds the learning rate: lr is 1),
    schedule-free 8 (needs no schedule)."""
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
    compensation: Annotated[Compensation, LATER] = "none"
    """bf16 weights only: kahan keeps what rounding takes from each update in a third state, 2 bytes a weight;
    stochastic rounds up or down by chance, so that small updates count on average, and keeps nothing."""


class Levers(Section):
    """What trades speed for memory. The levers here do not change what is computed, but for rounding."""

    gradient_checkpointing: Annotated[float, INCIDENTAL] = Field(default=0.0, ge=0, le=1)
    """Share of the repeated blocks whose activations are computed again instead of kept."""
    cache_latents: Annotated[bool, INCIDENTAL] = True
    """Encode images once, before training, and free the autoencoder."""
    cache_text: Annotated[bool, INCIDENTAL] = True
    """Encode captions once, before training, and free the text encoders."""
    vae_tiling: Annotated[bool, LATER] = False
    """Run the autoencoder in overlapping tiles: needs less memory for large images and videos, in caching and in
    validation samples. Latents and samples differ slightly where tiles are blended."""
    checkpoint_segment: Annotated[int, LATER, INCIDENTAL] = Field(default=1, ge=1)
    """How many neighbouring blocks are computed again together: more keep less in the forward pass and hold more in the
    backward pass. The share of gradient_checkpointing is then one of segments."""
    checkpoint_stride: Annotated[int | None, LATER, INCIDENTAL] = Field(default=None, ge=1)
    """A segment begins at every so manieth block, and the blocks between are kept: instead of a share, which is 1."""
    checkpoint_parts: Annotated[CheckpointParts, LATER, INCIDENTAL] = "blocks"
    """feed_forward: only the wide inner layers of the chosen blocks are computed again; cheaper, and saves less."""
    activation_offload: Annotated[bool, LATER, INCIDENTAL] = False
    """What the backward pass needs waits on the host: of checkpointed blocks their inputs, of others everything."""
    activation_offload_parts: Annotated[OffloadParts, LATER, INCIDENTAL] = "blocks"
    """attention: only what attention keeps goes to the host, also where its block is computed again."""
    swapped_blocks: Annotated[int, LATER, INCIDENTAL] = Field(default=0, ge=0)
    """How many of the blocks have their frozen weights on the host and bring them when they run. Adapters only."""
    compile: Annotated[Literal["off", "regional"], LATER, INCIDENTAL] = "off"
    """regional: the repeated blocks are compiled, once for all of a kind."""
    attention: Annotated[AttentionBackend, LATER, INCIDENTAL] = "auto"
    """Which kernel computes attention. auto leaves it to torch; math keeps every score, which takes much memory."""
    channels_last: Annotated[bool, LATER, INCIDENTAL] = False
    """Images of a UNet lie in memory pixel by pixel, as tensor cores want them."""
    fused_backward: Annotated[bool, LATER, INCIDENTAL] = False
    """Each weight is updated as soon as its gradient is there, so that gradients are never there all at once. Goes
    without clipping and accumulation."""
    optimizer_on_host: Annotated[bool, LATER, INCIDENTAL] = False
    """The optimizer's states and its update are on the host."""
    ema_on_host: Annotated[bool, LATER, INCIDENTAL] = False
    """The moving average is on the host."""
