"""What a plan needs to know of a model family: shapes, blocks, the loss and a forward pass, all without weights."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from foretune.catalog import FamilyFacts
from foretune.choices.model import read_json
from foretune.choices.training import ObjectiveChoice
from foretune.models.objectives import FlowMatching, Objective

Conditioning = dict[str, Tensor]

GUIDE = "guide_latents"
"""Name, among the conditioning, of latents that stand beside the noisy ones: a first frame and where it applies."""

_FEED_FORWARDS = frozenset({"ff", "ff_context", "ff_i", "ff_t", "ffn", "feed_forward", "img_mlp", "txt_mlp"})
"""What the feed-forward parts of blocks are called in diffusers."""


@dataclass(frozen=True)
class Architecture:
    """The configurations of a pipeline's parts: enough to build it without weights."""

    denoiser: Mapping[str, Any]
    vae: Mapping[str, Any] | None = None
    scheduler: Mapping[str, Any] | None = None
    max_text_tokens: int | None = None
    """Most tokens of the large text encoder, as its tokenizer says; None where there is none on disk."""

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
    """Where a denoiser or scheduler lies: in a folder of its name or, as in the oldest checkpoints, with the index."""
    return folder / part if (folder / part).is_dir() else folder


@dataclass(frozen=True)
class TensorSpec:
    """Shape and kind of one input of a training step, so that it can be made real or fake."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class RepeatedBlocks:
    """A stack of like blocks, and how many of them this model has."""

    name: str
    count: int


class Family(ABC):
    """One architecture of models, bound to the configuration of one of them."""

    facts: ClassVar[FamilyFacts]
    """Its row in the table that layers without torch ask, too."""
    denoiser_class_name: ClassVar[str]
    adapter_targets: ClassVar[tuple[str, ...]]
    """Ends of the module names that adapters go to unless told otherwise."""
    kept_in_high_precision: ClassVar[tuple[str, ...]] = ()
    """Parts of names of linear layers, inside of the blocks, that a quantised base leaves as they are. Layers outside
    of the blocks (first and last projections, embeddings of time and text) stay as they are anyhow."""
    default_text_tokens: ClassVar[int] = 0
    text_is_fixed: ClassVar[bool] = False
    """Whether it takes captions of that many tokens only, padded."""
    goes_by_samples: ClassVar[bool] = False
    """Whether it goes through a batch sample by sample, so that a larger batch means more operators."""
    stacks: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Lists of like blocks, in the order they run: attribute of the denoiser, configuration key that counts them."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def has_latents(self) -> bool:
        return self.facts.has_latents

    @property
    def denoiser_part(self) -> str:
        return self.facts.denoiser_part

    # ---- building

    @classmethod
    def denoiser_class(cls) -> Any:
        """The diffusers class of the denoiser; imported when it is needed, because that takes seconds."""
        return getattr(import_module("diffusers"), cls.denoiser_class_name)

    @classmethod
    def pipeline_class(cls) -> Any:
        """The diffusers pipeline that samples from it."""
        return getattr(import_module("diffusers"), cls.facts.pipeline_class_name)

    def denoiser_on_meta(self, dtype: torch.dtype) -> nn.Module:
        """The denoiser with shapes only: no weights, no memory."""
        previous = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device("meta"):
                config = {k: v for k, v in self.architecture.denoiser.items() if not k.startswith("_")}
                denoiser: nn.Module = self.denoiser_class()(**config)
        finally:
            torch.set_default_dtype(previous)
        _as_loaded(denoiser, dtype)
        return denoiser

    # ---- shapes

    @abstractmethod
    def blocks(self, denoiser: Any) -> tuple[nn.Module, ...]:
        """The repeated blocks in the order they run: for checkpointing, sharding, compiling, extrapolating."""

    def beside_blocks(self, denoiser: Any) -> tuple[nn.Module, ...]:
        """Modules outside of the blocks of which the model has one for each block, in their order; mostly none."""
        return ()

    def feed_forwards(self, block: nn.Module) -> tuple[nn.Module, ...]:
        """The feed-forward parts of a block, which widen each token and narrow it again.

        None where they are no module of their own: FLUX's single blocks compute them side by side with attention.
        """
        return tuple(module for name, module in block.named_modules() if name.rpartition(".")[2] in _FEED_FORWARDS)

    def block_kinds(self) -> tuple[RepeatedBlocks, ...]:
        """The stacks that `blocks` is made of, in its order; empty where the depth cannot be changed."""
        config = self.architecture.denoiser
        return tuple(RepeatedBlocks(name, int(config[key])) for name, key in self.stacks)

    def with_depths(self, depths: tuple[int, ...]) -> Self:
        """The same architecture with another number of blocks of each kind."""
        return self._with_config({key: depth for (_, key), depth in zip(self.stacks, depths, strict=True)})

    def latent_shape(self, height_px: int, width_px: int, num_frames: int = 1) -> tuple[int, ...]:
        """Shape of one sample as the denoiser sees it before packing; videos have frames after the channels."""
        factor = self._vae_factor()
        return (self._vae_channels(), height_px // factor, width_px // factor)

    @abstractmethod
    def size_multiple_px(self) -> int:
        """Image sides must be multiples of this."""

    @abstractmethod
    def default_resolution_px(self) -> int:
        """The size the model was made for; of a video, the shorter side."""

    def max_resolution_px(self) -> int | None:
        """The largest side it has positions for; None where there is no limit."""
        return None

    def own_text_tokens(self) -> int:
        """Most caption tokens unless told otherwise."""
        return self.default_text_tokens

    def default_size_px(self) -> tuple[int, int]:
        """Height and width the model was made for."""
        return (self.default_resolution_px(), self.default_resolution_px())

    def default_num_frames(self) -> int:
        """The length the model was made for."""
        return 1

    @abstractmethod
    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        """What a step needs besides latents and noise."""

    def num_guide_channels(self) -> int:
        """Channels as large as the latents that the denoiser is given beside the noisy ones, as `GUIDE`."""
        return 0

    # ---- doing

    @abstractmethod
    def objective(self, choice: ObjectiveChoice) -> Objective:
        """What the loss asks, with everything that was left out filled in as the family's own."""

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
        """One forward pass of the denoiser: same shape out as `noisy` in."""

    def latents_from_moments(self, moments: Tensor, posterior_noise: Tensor) -> Tensor:
        """A draw from the latents' distribution, scaled as the denoiser expects it."""
        mean, log_variance = moments.chunk(2, dim=1)
        sample = mean + torch.exp(0.5 * log_variance.clamp(-30, 20)) * posterior_noise
        return self._scaled(sample)

    # ---- shared arithmetic

    def _flow_matching(
        self, choice: ObjectiveChoice, density: Literal["uniform", "logit_normal"], shift: float
    ) -> FlowMatching:
        """Flow matching with this density and shift, unless others were asked for."""
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
        """Latents as the autoencoder made them, brought to the size and place the denoiser was trained on."""
        if self._vae.get("latents_mean") is None:
            return (sample - float(self._vae.get("shift_factor") or 0.0)) * float(self._vae["scaling_factor"])
        mean, std = (
            torch.tensor(self._vae[key], device=sample.device).view(1, -1, *([1] * (sample.dim() - 2)))
            for key in ("latents_mean", "latents_std")
        )
        return (sample - mean) * float(self._vae.get("scaling_factor", 1.0)) / std

    def _scheduler_value(self, key: str, default: float) -> float:
        return float((self.architecture.scheduler or {}).get(key, default))


def _as_loaded(denoiser: nn.Module, dtype: torch.dtype) -> None:
    """Types as loading gives them: what a checkpoint stores in that type, but for what the class keeps in fp32."""
    kept = set(getattr(denoiser, "_keep_in_fp32_modules", None) or ())
    for name, tensor in denoiser.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(torch.float32 if kept & set(name.split(".")) else dtype)
