"""What training and sampling need of a model family besides what a plan needs: weights, captions, images, pipelines."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from foretune.core.errors import Refused
from foretune.models.family import Conditioning, Family, part_folder
from foretune.models.stored_weights import StoredWeights

Finish = Callable[[nn.Module, str], None]
"""Called with a denoiser and the name of a module in it."""


class TrainableFamily(Family):
    """A family whose checkpoints can be loaded, trained and sampled from.

    One that reads captions has `text_parts` and `encode_text`.
    """

    text_parts: ClassVar[tuple[str, ...]] = ()
    """Folders of the text encoders and their tokenizers."""
    text_arguments: ClassVar[Mapping[str, str]] = {
        "prompt_embeds": "prompt_embeds",
        "prompt_mask": "prompt_attention_mask",
        "pooled_embeds": "pooled_prompt_embeds",
    }
    """The pipeline's arguments for the entries of an encoded caption; for the unconditional one with `negative_`."""
    autoencoder_class_name: ClassVar[str] = "AutoencoderKL"

    @property
    def image_parts(self) -> tuple[str, ...]:
        """Folders of the encoder that reads a given first frame, and of what prepares the frame for it."""
        return ()

    @property
    def takes_first_frame(self) -> bool:
        """Whether a clip continues a given first frame."""
        return False

    def refuse_variant(self, whose: str) -> None:
        """Raises for a checkpoint whose configuration cannot be trained."""

    # ---- loading

    def load_denoiser(
        self,
        folder: Path,
        dtype: torch.dtype,
        finish: Finish | None = None,
        stored: StoredWeights | None = None,
    ) -> nn.Module:
        """Loads the denoiser from safetensors to the CPU, module by module.

        `finish` is called with the name of each module as soon as its own tensors are read. It may move, quantise or
        replace the module: the host then never holds more than one in another dtype than the file's. `stored` has
        other weights than the folder.
        """
        part = part_folder(folder, self.denoiser_part)
        if stored is None:
            stored = StoredWeights.of(_with_safetensors(part))
        denoiser: Any = self.denoiser_without_weights(dtype)
        if stored is None or not stored.fit(denoiser):
            stored = None
            denoiser = self.denoiser_class().from_pretrained(part, dtype=dtype, use_safetensors=True)
        # By name: a list of the modules would hold those that are replaced.
        for name in [name for name, _ in denoiser.named_modules()]:
            if stored is not None:
                stored.put(denoiser.get_submodule(name), f"{name}." if name else "")
            if finish is not None:
                finish(denoiser, name)
        denoiser.register_to_config(_name_or_path=str(part))
        whole: nn.Module = denoiser.eval()
        return whole

    def load_pipeline(self, folder: Path, dtype: torch.dtype, **parts: Any) -> Any:
        """Loads the pipeline from a folder. Keyword arguments replace parts; None leaves a part out."""
        pipeline = self.pipeline_class().from_pretrained(
            folder, dtype=dtype, use_safetensors=True, local_files_only=True, **parts
        )
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def load_vae(self, folder: Path, dtype: torch.dtype) -> nn.Module:
        """Loads only the autoencoder."""
        autoencoder: Any = getattr(import_module("diffusers"), self.autoencoder_class_name)
        vae: nn.Module = autoencoder.from_pretrained(
            _with_safetensors(folder / "vae"), dtype=dtype, use_safetensors=True
        )
        return vae.requires_grad_(requires_grad=False).eval()

    def load_text_encoders(self, folder: Path, dtype: torch.dtype) -> Any:
        """Loads a pipeline with only the text encoders and tokenizers."""
        for part in self.text_parts:
            if part.startswith("text_encoder") and (folder / part).is_dir():
                _with_safetensors(folder / part)
        return self.load_pipeline(folder, dtype, **dict.fromkeys((self.denoiser_part, "vae", *self.image_parts)))

    def load_image_encoder(self, folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
        """Loads what `encode_first_frames` needs besides the autoencoder."""
        return None

    # ---- captions and images

    def text_settings(self, folder: Path) -> str:
        """Returns what changes encoded captions besides the files of the encoders, for the key of their cache."""
        return ""

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        """Returns the denoiser's conditioning for each caption."""
        raise AssertionError(f"{self.name} models take no captions")

    def encode_images(self, vae: Any, images: Tensor) -> Tensor:
        """Returns mean and log-variance of the latents of images or clips in [-1, 1], stacked along the channels."""
        moments: Tensor = vae.encode(images.to(vae.dtype)).latent_dist.parameters
        return moments.float()

    def embed_frames(self, image_encoder: Any, frames: Tensor) -> Conditioning:
        """Returns what the denoiser reads of first frames in [-1, 1], (B, 3, H, W), beside their latents."""
        return {}

    def encode_first_frames(self, vae: Any, image_encoder: Any, clips: Tensor) -> Conditioning:
        """Returns the conditioning on the first frames of clips in [-1, 1], (B, 3, F, H, W)."""
        return {}

    def image_conditioning(self, framing: Tensor) -> Conditioning:
        """Returns the conditioning on each image beside its caption, from `Batch.framing`."""
        return {}

    def images_from_latents(self, vae: Any, latents: Tensor) -> Tensor:
        """Decodes scaled latents to images in [-1, 1]."""
        # Scaling is a factor and a shift for each number: two known ones tell both, whichever family it is.
        shift = self._scaled(torch.zeros_like(latents))
        unscaled = (latents - shift) / (self._scaled(torch.ones_like(latents)) - shift)
        images: Tensor = vae.decode(unscaled.to(vae.dtype), return_dict=False)[0]
        return images.float()

    def pipeline_text(self, conditioning: Conditioning, unconditional: Conditioning) -> dict[str, Any]:
        """Returns encoded captions as arguments of this family's pipeline, instead of prompts."""
        assert self.text_parts, f"{self.name} models take no captions"
        names = {entry: name for entry, name in self.text_arguments.items() if entry in conditioning}
        arguments = {name: conditioning[entry] for entry, name in names.items()}
        return arguments | {f"negative_{name}": unconditional[entry] for entry, name in names.items()}

    def give_first_frame(self, pipeline: Any, conditioning: Conditioning) -> None:
        """Gives a pipeline what `encode_first_frames` made, so that it needs no image encoder."""

    def sampling_arguments(self, num_text_tokens: int, guidance_scale: float | None) -> dict[str, Any]:
        """Returns the arguments of this family's pipeline other than prompt, size, steps and generator."""
        arguments: dict[str, Any] = {"max_sequence_length": num_text_tokens}
        if guidance_scale is not None:
            arguments["guidance_scale"] = guidance_scale
        return arguments


def _with_safetensors(part: Path) -> Path:
    """Returns the folder of a part; raises if its weights are not in safetensors, the only safe format."""
    if not list(part.glob("*.safetensors")):
        raise Refused(
            f"{part} holds no .safetensors file. Pickled weights can run code when loaded and are refused; "
            "convert them first (DiffusionPipeline.save_pretrained with safe_serialization=True)."
        )
    return part
