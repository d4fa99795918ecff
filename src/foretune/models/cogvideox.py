"""CogVideoX 1.0 and 1.5: T5 captions and video in one sequence, trained as diffusion."""

from typing import Any

from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.choices.training import ObjectiveChoice
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.objectives import Objective, Velocity
from foretune.models.video import VideoTransformer

Grid = tuple[int, int]


class CogVideoX(VideoTransformer):
    """The smallest adds position embeddings, the others use RoPE; 1.5 also folds two latent frames into one token."""

    facts = family_facts("cogvideox")
    denoiser_class_name = "CogVideoXTransformer3DModel"
    default_text_tokens = 226

    def latent_shape(self, height_px: int, width_px: int, num_frames: int = 1) -> tuple[int, ...]:
        channels, frames, height, width = super().latent_shape(height_px, width_px, num_frames)
        folded = self._frames_per_token()
        return (channels, -(-frames // folded) * folded, height, width)

    def default_size_px(self) -> tuple[int, int]:
        config = self.architecture.denoiser
        if config.get("patch_size_t"):
            return (768, 1360)  # 1.5 configures its largest side, not its default size
        return (config["sample_height"] * self._vae_factor(), config["sample_width"] * self._vae_factor())

    def default_num_frames(self) -> int:
        return int(self.architecture.denoiser["sample_frames"])

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        width = self.architecture.denoiser["text_embed_dim"]
        return {"prompt_embeds": TensorSpec((batch_size, num_text_tokens, width))}

    def objective(self, choice: ObjectiveChoice) -> Objective:
        return Velocity(
            num_levels=int(self._scheduler_value("num_train_timesteps", 1000)),
            beta_start=self._scheduler_value("beta_start", 0.00085),
            beta_end=self._scheduler_value("beta_end", 0.012),
            beta_schedule="scaled_linear",
        )

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Tensor,
        time: Tensor,
        conditioning: Conditioning,
        *,
        guidance_scale: float,
    ) -> Tensor:
        predicted: Tensor = denoiser(
            hidden_states=noisy.transpose(1, 2),
            encoder_hidden_states=conditioning["prompt_embeds"],
            timestep=time,
            image_rotary_emb=self._rotation(noisy),
            return_dict=False,
        )[0]
        return predicted.transpose(1, 2)

    def _rotation(self, noisy: Tensor) -> tuple[Tensor, Tensor] | None:
        """Returns the cosines and sines of every token's rotary embedding."""
        config = self.architecture.denoiser
        if not config["use_rotary_positional_embeddings"]:
            return None
        from diffusers.models.embeddings import get_3d_rotary_pos_embed

        edge = self._patch_size()
        frames, height, width = noisy.shape[2:]
        grid: Grid = (height // edge, width // edge)
        base: Grid = (config["sample_height"] // edge, config["sample_width"] // edge)
        places: dict[str, Any]
        if config.get("patch_size_t"):
            places = {"crops_coords": None, "grid_type": "slice", "max_size": base}
        else:
            places = {"crops_coords": _middle(grid, base)}
        cosines, sines = get_3d_rotary_pos_embed(
            embed_dim=config["attention_head_dim"],
            grid_size=grid,
            temporal_size=frames // self._frames_per_token(),
            device=noisy.device,
            **places,
        )
        return cosines, sines

    def _frames_per_token(self) -> int:
        return int(self.architecture.denoiser.get("patch_size_t") or 1)

    def _vae_factor(self) -> int:
        return int(2 ** (len(self._vae["block_out_channels"]) - 1))


def _middle(grid: Grid, base: Grid) -> tuple[Grid, Grid]:
    """Returns the corners of the centre crop of the base grid that has this grid's aspect ratio."""
    height, width = grid
    if height / width > base[0] / base[1]:
        rows, columns = base[0], round(base[0] / height * width)
    else:
        rows, columns = round(base[1] / width * height), base[1]
    top, left = round((base[0] - rows) / 2), round((base[1] - columns) / 2)
    return (top, left), (top + rows, left + columns)
