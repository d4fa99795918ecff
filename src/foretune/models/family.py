"""What a plan needs to know of a model family: shapes, blocks, the loss and a forward pass, all without weights."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from foretune.accelerator import page_locked
from foretune.accelerator.copies import moved
from foretune.accelerator.page_locked import copies_in_background
from foretune.catalog import FamilyFacts
from foretune.choices.model import read_json
from foretune.choices.training import ObjectiveChoice
from foretune.models.objectives import FlowMatching, Objective

Conditioning = dict[str, Tensor]

GUIDE = "guide_latents"
"""Key in the conditioning for latents concatenated to the noisy ones: a first frame and its mask."""

_FEED_FORWARDS = frozenset({"ff", "ff_context", "ff_i", "ff_t", "ffn", "feed_forward", "img_mlp", "txt_mlp"})
"""Names of the feed-forward parts of blocks in diffusers."""


@dataclass(frozen=True)
class Architecture:
    """The configurations of a pipeline's parts: enough to build it without weights."""

    denoiser: Mapping[str, Any]
    vae: Mapping[str, Any] | None = None
    scheduler: Mapping[str, Any] | None = None
    max_text_tokens: int | None = None
    """Maximum number of tokens of the large text encoder, from its tokenizer; None if there is none on disk."""

    @classmethod
    def from_folder(cls, folder: Path, denoiser_part: str) -> "Architecture":
        def optional(path: Path) -> Mapping[str, Any] | None:
            return read_json(path) if path.is_file() else None

        return cls(
            denoiser=read_json(part_folder(folder, denoiser_part) / "config.json"),
            vae=optional(folder / "vae" / "config.json"),
            scheduler=optional(part_folder(folder, "scheduler") / "scheduler_config.json"),
            max_text_tokens=(optional(folder / "tokenizer_2" / "tokenizer_config.json") or {}).get("model_max_length"),
        )


def part_folder(folder: Path, part: str) -> Path:
    """Returns the folder of a denoiser or scheduler: its own, or the model folder as in the oldest checkpoints."""
    return folder / part if (folder / part).is_dir() else folder


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one input of a training step, to create it as a real or fake tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class RepeatedBlocks:
    """A stack of identical blocks, and their number in this model."""

    name: str
    count: int


class Family(ABC):
    """A model architecture, bound to one model's configuration."""

    facts: ClassVar[FamilyFacts]
    """Its row in the table that layers without torch ask, too."""
    denoiser_class_name: ClassVar[str]
    adapter_targets: ClassVar[tuple[str, ...]]
    """Suffixes of the module names that adapters target by default."""
    kept_in_high_precision: ClassVar[tuple[str, ...]] = ()
    """Substrings of the names of linear layers inside blocks that stay unquantised. Layers outside the blocks (first
    and last projections, time and text embeddings) stay so anyway.
    """
    default_text_tokens: ClassVar[int] = 0
    most_text_tokens: ClassVar[int | None] = None
    """The most that its pipeline takes; None if it takes any number."""
    read_by_host: ClassVar[tuple[str, ...]] = ()
    """Keys of the conditioning that the host reads in each forward pass. They stay in its memory, because it would wait
    for the device to read them there.
    """
    goes_by_samples: ClassVar[bool] = False
    """Whether the forward pass loops over the samples of a batch, so that a larger batch means more operators."""
    stacks: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Lists of identical blocks, in execution order: attribute of the denoiser, configuration key of their number."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def is_video(self) -> bool:
        return self.facts.is_video

    @property
    def has_latents(self) -> bool:
        return self.facts.has_latents

    @property
    def text_is_fixed(self) -> bool:
        return self.facts.text_is_fixed

    @property
    def denoiser_part(self) -> str:
        return self.facts.denoiser_part

    # ---- building

    @classmethod
    def denoiser_class(cls) -> Any:
        """Returns the denoiser's diffusers class, imported on demand because the import takes seconds."""
        return getattr(import_module("diffusers"), cls.denoiser_class_name)

    def pipeline_class(self) -> Any:
        """Returns the diffusers pipeline class for sampling."""
        return getattr(import_module("diffusers"), self.facts.pipeline_class_name)

    def denoiser_on_meta(self, dtype: torch.dtype) -> nn.Module:
        """Returns the denoiser on meta: shapes only, no memory."""
        config = {key: value for key, value in self.architecture.denoiser.items() if not key.startswith("_")}
        with torch.device("meta"):
            return _built(lambda: self.denoiser_class()(**config), dtype)

    def denoiser_without_weights(self, dtype: torch.dtype) -> nn.Module:
        """Returns the denoiser with its parameters on meta and its buffers computed, as before its weights are read."""
        from accelerate import init_empty_weights
        from diffusers.models.modeling_utils import no_init_weights

        with no_init_weights(), init_empty_weights(include_buffers=False):
            return _built(lambda: self.denoiser_class().from_config(dict(self.architecture.denoiser)), dtype)

    # ---- shapes

    @abstractmethod
    def blocks(self, denoiser: Any) -> tuple[nn.Module, ...]:
        """Returns the repeated blocks in execution order, for checkpointing, sharding, compiling and extrapolating."""

    def beside_blocks(self, denoiser: Any) -> tuple[nn.Module, ...]:
        """Returns modules outside the blocks that exist once per block, in order; most models have none."""
        return ()

    def feed_forwards(self, block: nn.Module) -> tuple[nn.Module, ...]:
        """Returns the feed-forward parts of a block, which widen each token and project it back.

        Empty if they are not a separate module: FLUX's single blocks compute them in parallel with attention.
        """
        return tuple(module for name, module in block.named_modules() if name.rpartition(".")[2] in _FEED_FORWARDS)

    def without_gradient(self) -> tuple[str, ...]:
        """Returns prefixes of the names of weights whose output nothing reads: they stay frozen.

        DDP would wait for their gradients.
        """
        return ()

    def block_kinds(self) -> tuple[RepeatedBlocks, ...]:
        """Returns the stacks that make up `blocks`, in order; empty if the depth cannot be changed."""
        config = self.architecture.denoiser
        return tuple(RepeatedBlocks(name, int(config[key])) for name, key in self.stacks)

    def with_depths(self, depths: tuple[int, ...]) -> Self:
        """Returns the same architecture with another number of blocks of each kind."""
        return self._with_config({key: depth for (_, key), depth in zip(self.stacks, depths, strict=True)})

    def latent_shape(self, height_px: int, width_px: int, num_frames: int = 1) -> tuple[int, ...]:
        """Returns the shape of one sample before packing; videos have frames after the channels."""
        factor = self._vae_factor()
        return (self._vae_channels(), height_px // factor, width_px // factor)

    @abstractmethod
    def size_multiple_px(self) -> int:
        """Image sides must be multiples of this."""

    @abstractmethod
    def default_resolution_px(self) -> int:
        """Returns the native resolution; for a video, its shorter side."""

    def max_resolution_px(self) -> int | None:
        """Returns the largest side that has position embeddings; None if there is no limit."""
        return None

    def own_text_tokens(self) -> int:
        """Returns the default maximum number of caption tokens."""
        return self.default_text_tokens

    def max_text_tokens(self) -> int | None:
        """Returns the largest number of caption tokens that model and pipeline take; None if there is no limit."""
        return self.most_text_tokens

    def default_size_px(self) -> tuple[int, int]:
        """Returns the native height and width."""
        return (self.default_resolution_px(), self.default_resolution_px())

    def default_num_frames(self) -> int:
        """Returns the native number of frames."""
        return 1

    def frames_per_latent(self) -> int:
        """Returns the number of frames that share a latent frame, after the first, which has its own."""
        return 1

    @abstractmethod
    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        """Returns the inputs of a step other than latents and noise."""

    def num_guide_channels(self) -> int:
        """Returns the number of channels of `GUIDE`, which is concatenated to the noisy latents."""
        return 0

    # ---- training and sampling

    @abstractmethod
    def objective(self, choice: ObjectiveChoice) -> Objective:
        """Returns the objective; settings that are left out get the family's defaults."""

    @abstractmethod
    def predict(
        self,
        denoiser: nn.Module,
        noisy: Tensor,
        time: Tensor,
        conditioning: Conditioning,
        *,
        guidance_scale: float,
    ) -> Tensor:
        """Runs the denoiser once; the output has the shape of `noisy`."""

    def latents_from_moments(self, moments: Tensor, posterior_noise: Tensor) -> Tensor:
        """Draws latents from their distribution, scaled for the denoiser."""
        mean, log_variance = moments.chunk(2, dim=1)
        sample = mean + torch.exp(0.5 * log_variance.clamp(-30, 20)) * posterior_noise
        return self._scaled(sample)

    # ---- shared arithmetic

    def _flow_matching(
        self, choice: ObjectiveChoice, density: Literal["uniform", "logit_normal"], shift: float
    ) -> FlowMatching:
        """Returns flow matching with this density and shift, unless others are requested."""
        return FlowMatching(
            density=choice.timestep_density or density,
            weighting=choice.weighting or "none",
            shift=choice.shift or shift,
            logit_mean=choice.logit_mean,
            logit_std=choice.logit_std,
            mode_scale=choice.mode_scale,
        )

    def _with_config(self, changes: Mapping[str, Any]) -> Self:
        denoiser = {**self.architecture.denoiser, **changes}
        return type(self)(replace(self.architecture, denoiser=denoiser))

    @property
    def _vae(self) -> Mapping[str, Any]:
        assert self.architecture.vae is not None, f"the autoencoder of this {self.name} model is not known"
        return self.architecture.vae

    def _vae_factor(self) -> int:
        return int(2 ** (len(self._vae["block_out_channels"]) - 1))

    def _vae_channels(self) -> int:
        return int(self._vae["latent_channels"] if "latent_channels" in self._vae else self._vae["z_dim"])

    def _scaled(self, sample: Tensor) -> Tensor:
        """Scales and shifts the autoencoder's latents to the range that the denoiser was trained on."""
        if self._vae.get("latents_mean") is None:
            return (sample - float(self._vae.get("shift_factor") or 0.0)) * float(self._vae["scaling_factor"])
        mean, std = (
            numbers_on(sample.device, self._vae[key]).view(1, -1, *([1] * (sample.dim() - 2)))
            for key in ("latents_mean", "latents_std")
        )
        return (sample - mean) * float(self._vae.get("scaling_factor", 1.0)) / std

    def _static_shift(self) -> float:
        """Returns the shift of noise levels in the checkpoint's scheduler, which training follows.

        A shift that depends on the image size is one of sampling, not of training.
        """
        is_dynamic = bool((self.architecture.scheduler or {}).get("use_dynamic_shifting", False))
        return 1.0 if is_dynamic else self._scheduler_value("shift", 1.0)

    def _scheduler_value(self, key: str, default: float) -> float:
        return float((self.architecture.scheduler or {}).get(key, default))


def numbers_on(device: torch.device, values: Sequence[float]) -> Tensor:
    """Returns the numbers as a tensor on the device, to which they are copied without a wait of the host.

    `torch.tensor(values, device=device)` would wait until the device has done everything before it.
    """
    numbers = torch.tensor(values)
    return moved(page_locked.locked(numbers, device) if copies_in_background(device) else numbers, device)


def _built(build: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        denoiser = build()
    finally:
        torch.set_default_dtype(previous)
    cast_as_loaded(denoiser, dtype)
    return denoiser


def cast_as_loaded(
    denoiser: nn.Module, dtype: torch.dtype, *, all_buffers: bool = False, only: str | None = None
) -> None:
    """Sets the dtypes as loading would: `dtype`, except for modules that the class keeps in fp32.

    `all_buffers` includes those that are not stored; a model that is built in `dtype` has them in their dtype. `only`
    is a part of the names of the tensors that are cast.
    """
    kept = set(getattr(denoiser, "_keep_in_fp32_modules", None) or ())
    others = dict(denoiser.named_buffers()) if all_buffers else {}
    for name, tensor in {**others, **denoiser.state_dict(keep_vars=True)}.items():
        parts = set(name.split("."))
        if tensor.is_floating_point() and (only is None or only in parts):
            tensor.data = tensor.data.to(torch.float32 if kept & parts else dtype)
