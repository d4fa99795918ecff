"""How long, how much at once, with which numbers; and what the loss is."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from foretune.choices.optimizers import OPTIMIZER_SPECS, OptimizerKind, OptimizerSpec, state_bytes_text
from foretune.choices.section import FORMS_STEP, INCIDENTAL, LATER, Section

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Clock = Literal["steps", "run"]
WeightNumbers = Literal["fp32", "bf16"]
Compensation = Literal["none", "kahan", "stochastic"]
OffloadParts = Literal["blocks", "attention"]
CheckpointParts = Literal["blocks", "feed_forward"]
AttentionBackend = Literal["auto", "math", "efficient", "flash", "cudnn"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Ema(Section):
    """Exponential moving average of the trained weights; it is exported instead of them."""

    decay: float = Field(default=0.999, gt=0, lt=1)
    """Decay per step: the share of the average that is kept."""


class Train(Section):
    """Length, batch size, precision, seed, gradient clipping and EMA. Set one of steps, epochs and seconds."""

    steps: int | None = Field(default=None, ge=1)
    """Number of optimizer steps."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the data, instead of steps."""
    seconds: Annotated[float | None, LATER] = Field(default=None, gt=0)
    """Training time, instead of steps: no step starts after it. The learning rate stays constant after its warm-up."""
    clock: Annotated[Clock, LATER] = "steps"
    """What `seconds` counts. steps: time in optimizer steps, including waiting for data. run: everything from the first
    step on, including validation and saving. Neither counts the time before the first step."""
    # Of the next two the product counts, times the devices: it makes one optimizer step.
    batch_size: Annotated[int, INCIDENTAL] = Field(default=1, ge=1)
    """Samples per forward pass and device."""
    gradient_accumulation: Annotated[int, INCIDENTAL] = Field(default=1, ge=1)
    """Forward passes per optimizer step."""
    precision: Precision = "bf16"
    """dtype of the forward and backward pass and of frozen weights. tf32 is fp32 with matrix products in TF32 (NVIDIA
    Ampere and newer)."""
    weight_dtype: Annotated[WeightNumbers, LATER] = "fp32"
    """dtype of the trained weights, their gradients and the optimizer states: with AdamW 16 bytes per weight in fp32, 8
    in bf16. bf16 needs `precision: bf16`, and loses updates below about 1/256 of a weight unless
    `optimizer.compensation` is set."""
    loss_scaling: Literal["dynamic", "off"] = "dynamic"
    """fp16 only: scales the loss so that small gradients do not underflow."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of every random draw: order, crop, noise, timestep, dropout."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Gradient clipping: the largest gradient norm. null: no clipping."""
    ema: Ema | None = None
    """Exponential moving average of the weights. Left out: none."""

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
    """The loss: timestep sampling, shift and weighting. A key that is left out has the model family's own value."""

    timestep_density: Literal["uniform", "logit_normal", "mode"] | None = None
    """Flow matching: distribution from which timesteps are sampled."""
    logit_mean: float = 0.0
    """logit_normal only: mean; higher samples noisier timesteps more often."""
    logit_std: float = Field(default=1.0, gt=0)
    """logit_normal only: standard deviation."""
    mode_scale: float = 1.29
    """mode only: how strongly timesteps in the middle are preferred."""
    shift: float | None = Field(default=None, gt=0)
    """Flow matching: timestep shift; above 1 is noisier, 1 is no shift. Left out: as in the checkpoint's scheduler."""
    weighting: Literal["none", "sigma_sqrt", "cosmap"] | None = None
    """Flow matching: loss weighting by timestep."""
    guidance_scale: float = Field(default=3.5, ge=0)
    """Guidance value given to a guidance-distilled model (FLUX.1-dev) in training."""


class Optimizer(Section):
    """Optimizer, learning rate and schedule."""

    kind: Annotated[OptimizerKind, FORMS_STEP] = Field(
        default="adamw", description=f"Optimizer. Bytes of state per fp32 weight: {state_bytes_text()}."
    )
    lr: float = Field(default=1e-4, gt=0)
    """Learning rate after the warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or decayed to zero at the last step."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up from zero."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of the first and second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the denominator for numerical stability."""
    weight_decay: float = Field(default=1e-2, ge=0)
    """Decoupled weight decay: each step subtracts lr x weight_decay x weight."""
    compensation: Annotated[Compensation, LATER] = "none"
    """bf16 weights only. kahan: Kahan summation, one more state of 2 bytes per weight. stochastic: stochastic rounding,
    no extra state; small updates count on average."""

    @property
    def spec(self) -> OptimizerSpec:
        """What is known of the chosen optimizer."""
        return OPTIMIZER_SPECS[self.kind]


CompileMode = Literal["off", "regional"]


class Levers(Section):
    """Memory against speed. Except for rounding and `vae_tiling`, none of these changes what is computed."""

    gradient_checkpointing: Annotated[float, INCIDENTAL] = Field(default=0.0, ge=0, le=1)
    """Share of the transformer or UNet blocks with gradient checkpointing: 0 is off, 1 is all blocks."""
    cache_latents: Annotated[bool, INCIDENTAL] = True
    """Encode images once, before training, and free the VAE."""
    cache_text: Annotated[bool, INCIDENTAL] = True
    """Encode captions once, before training, and free the text encoders."""
    vae_tiling: Annotated[bool, LATER] = False
    """Run the VAE in overlapping tiles: less memory for large images and videos, in caching and in validation samples.
    Latents and samples differ slightly where tiles are blended."""
    checkpoint_segment: Annotated[int, LATER, INCIDENTAL, FORMS_STEP] = Field(default=1, ge=1)
    """Blocks per checkpointed segment: larger segments store less in the forward pass and more in the backward pass.
    gradient_checkpointing is then the share of segments."""
    checkpoint_stride: Annotated[int | None, LATER, INCIDENTAL, FORMS_STEP] = Field(default=None, ge=1)
    """A checkpointed segment starts at every Nth block; the other blocks are not checkpointed. Set
    gradient_checkpointing to 1 with it."""
    checkpoint_parts: Annotated[CheckpointParts, LATER, INCIDENTAL, FORMS_STEP] = "blocks"
    """feed_forward: checkpoint only the feed-forward layers of the chosen blocks; faster, and saves less."""
    activation_offload: Annotated[bool, LATER, INCIDENTAL, FORMS_STEP] = False
    """Move activations to host memory until the backward pass: of checkpointed blocks only their inputs."""
    activation_offload_parts: Annotated[OffloadParts, LATER, INCIDENTAL, FORMS_STEP] = "blocks"
    """attention: offload only the activations of attention, also in checkpointed blocks."""
    block_swap: Annotated[int, LATER, INCIDENTAL] = Field(default=0, ge=0)
    """Block swap: number of blocks whose frozen weights stay in host memory until the block runs. Adapters only."""
    block_swap_prefetch: Annotated[int, LATER, INCIDENTAL] = Field(default=1, ge=0)
    """Swapped blocks that are copied to the device ahead of the running one, while others compute. Each takes the
    device memory of one block. 0: a block is copied when it runs, and computation waits for it."""
    compile: Annotated[CompileMode, LATER, INCIDENTAL] = "off"
    """regional: torch.compile on the repeated blocks; equal blocks are compiled once."""
    attention: Annotated[AttentionBackend, LATER, INCIDENTAL, FORMS_STEP] = "auto"
    """Attention kernel. auto: torch chooses. math stores the full score matrix and needs much memory."""
    channels_last: Annotated[bool, LATER, INCIDENTAL, FORMS_STEP] = False
    """channels_last memory format for a UNet, which tensor cores prefer."""
    fused_backward: Annotated[bool, LATER, INCIDENTAL, FORMS_STEP] = False
    """Update each weight in the backward pass as soon as its gradient is ready, so that gradients are never all in
    memory. Not with gradient clipping or accumulation."""
    optimizer_offload: Annotated[bool, LATER, INCIDENTAL, FORMS_STEP] = False
    """Keep the optimizer states in host memory and update on the CPU."""
    ema_offload: Annotated[bool, LATER, INCIDENTAL] = False
    """Keep the EMA weights in host memory."""
