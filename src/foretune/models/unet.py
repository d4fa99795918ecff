"""Shared by the families of text-to-image UNets."""

from typing import Any

from torch import Tensor, nn

from foretune.choices.training import ObjectiveChoice
from foretune.models.family import Conditioning, Family, TensorSpec
from foretune.models.objectives import Objective, denoising

_NUM_TIME_IDS = 6  # original size, crop corner, target size


class TextToImageUNet(Family):
    """Convolutions and attention at decreasing and increasing resolutions, with text by cross-attention."""

    denoiser_class_name = "UNet2DConditionModel"
    adapter_targets = ("to_q", "to_k", "to_v", "to_out.0")
    kept_in_high_precision = ("time_emb_proj",)

    def blocks(self, denoiser: Any) -> tuple[nn.Module, ...]:
        """Returns every residual layer and transformer block, as in the model's own gradient checkpointing."""
        middle = denoiser.mid_block
        return (
            *(block for part in denoiser.down_blocks for block in _layers(part.resnets, _attentions(part))),
            *_layers(middle.resnets, [None, *_attentions(middle)], attention_first=True),
            *(block for part in denoiser.up_blocks for block in _layers(part.resnets, _attentions(part))),
        )

    def size_multiple_px(self) -> int:
        return self._vae_factor() * int(2 ** (len(self.architecture.denoiser["block_out_channels"]) - 1))

    def default_resolution_px(self) -> int:
        return int(self.architecture.denoiser["sample_size"]) * self._vae_factor()

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        config = self.architecture.denoiser
        width = config.get("encoder_hid_dim") or config["cross_attention_dim"]
        return {"prompt_embeds": TensorSpec((batch_size, num_text_tokens, width))}

    def objective(self, choice: ObjectiveChoice) -> Objective:
        return denoising(self.architecture.scheduler, beta_schedule="scaled_linear", betas=(0.00085, 0.012))

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
            noisy,
            time,
            encoder_hidden_states=conditioning["prompt_embeds"],
            added_cond_kwargs=self._added(conditioning),
            return_dict=False,
        )[0]
        return predicted

    def _added(self, conditioning: Conditioning) -> dict[str, Tensor] | None:
        """Returns what is added to the time embedding."""
        return None


class SizedUNet(TextToImageUNet):
    """A larger UNet that is also conditioned on the sizes of the image and a pooled caption."""

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        config = self.architecture.denoiser
        # One projection takes the pooled caption and the embedded sizes together.
        pooled_width = (
            config["projection_class_embeddings_input_dim"] - _NUM_TIME_IDS * config["addition_time_embed_dim"]
        )
        return {
            **super().conditioning_specs(batch_size, num_text_tokens),
            "pooled_embeds": TensorSpec((batch_size, pooled_width)),
            "time_ids": TensorSpec((batch_size, _NUM_TIME_IDS)),
        }

    def _added(self, conditioning: Conditioning) -> dict[str, Tensor] | None:
        return {"text_embeds": conditioning["pooled_embeds"], "time_ids": conditioning["time_ids"]}


def _attentions(part: Any) -> list[Any]:
    return list(getattr(part, "attentions", None) or [None] * len(part.resnets))


def _layers(resnets: Any, attentions: list[Any], *, attention_first: bool = False) -> list[nn.Module]:
    """Returns residual layers and their transformer blocks, in execution order."""
    layers: list[nn.Module] = []
    for resnet, attention in zip(resnets, attentions, strict=True):
        blocks = list(attention.transformer_blocks) if attention is not None else []
        layers += [*blocks, resnet] if attention_first else [resnet, *blocks]
    return layers
