"""Every configuration built without weights: the counts in the rows are those of the network."""

import copy
from typing import Any

import diffusers
import pytest
import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from foretune.catalog import ModelComponent, component, components, flop_counts

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _built(row: ModelComponent) -> nn.Module:
    """The network on the meta device: shapes without memory."""
    config = copy.deepcopy(row.config)
    with torch.device("meta"):
        if row.library == "diffusers":
            return getattr(diffusers, row.class_name).from_config(config)  # type: ignore[no-any-return]
        cls = getattr(transformers, row.class_name)
        return cls(cls.config_class.from_dict(config))  # type: ignore[no-any-return]


def _is_attention_projection(name: str) -> bool:
    return name.rsplit(".", 1)[-1] in {"to_q", "to_k", "to_v"} or name.endswith("to_out.0")


def _lora_size(linears: dict[str, nn.Linear]) -> int:
    return sum(layer.in_features + layer.out_features for layer in linears.values())


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", list(components()))
def test_counts_are_those_of_the_network(name: str) -> None:
    row = component(name)
    network = _built(row)
    linears = {n: m for n, m in network.named_modules() if isinstance(m, nn.Linear)}
    stored = set(network.state_dict())
    counted = {
        "num_params": sum(p.numel() for p in network.parameters()),
        "num_linear_weight_params": sum(m.weight.numel() for m in linears.values()),
        "num_linear_layers": len(linears),
        "num_conv_weight_params": sum(m.weight.numel() for m in network.modules() if isinstance(m, CONVOLUTIONS)),
        "num_persistent_buffer_elements": sum(b.numel() for n, b in network.named_buffers() if n in stored),
    }
    assert counted == row.model_dump(include=set(counted))
    if row.lora_params_per_rank is not None:
        attention = {n: m for n, m in linears.items() if _is_attention_projection(n)}
        assert row.lora_params_per_rank.attn_qkvo == _lora_size(attention)
        assert row.lora_params_per_rank.all_linear == _lora_size(linears)
        assert row.lora_params_per_rank.num_attn_qkvo_modules == len(attention)
    if row.num_blocks is not None:
        stacks = {n: m for n, m in network.named_children() if isinstance(m, nn.ModuleList)}
        main = [len(m) for n, m in stacks.items() if n == "layers" or n.endswith("blocks")]
        assert row.num_blocks == sum(main)


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype, device="meta")


def _inputs(name: str, width_px: int, height_px: int, num_text_tokens: int) -> dict[str, Any]:
    """What one forward pass of a first-family denoiser takes."""
    if name.startswith("flux.1"):
        num_tokens = width_px // 16 * (height_px // 16)
        guidance = {"guidance": _meta(1)} if component(name).config["guidance_embeds"] else {}
        return {
            "hidden_states": _meta(1, num_tokens, 64),
            "encoder_hidden_states": _meta(1, num_text_tokens, 4096),
            "pooled_projections": _meta(1, 768),
            "timestep": _meta(1),
            "img_ids": _meta(num_tokens, 3),
            "txt_ids": _meta(num_text_tokens, 3),
            **guidance,
        }
    if name.startswith("sd3"):
        return {
            "hidden_states": _meta(1, 16, height_px // 8, width_px // 8),
            "encoder_hidden_states": _meta(1, num_text_tokens, 4096),
            "pooled_projections": _meta(1, 2048),
            "timestep": _meta(1),
        }
    return {"sample": _meta(1, 3, height_px, width_px), "timestep": _meta(1)}


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", ["flux.1-schnell", "sd3-medium", "ddpm-cifar10"])
def test_flops_are_those_of_a_forward_pass(name: str) -> None:
    network = _built(component(name)).eval()
    row = next(row for row in flop_counts() if row.component == name)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(**_inputs(name, row.width_px, row.height_px, row.num_text_tokens))
    assert counter.get_total_flops() == round(row.forward_tflop * 10**12)


def test_hidream_runs_with_its_rope_axes_and_not_with_the_class_default() -> None:
    small = {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2, "llama_layers": [0, 1]}
    narrow = {"caption_channels": [64, 64], "text_emb_dim": 32}
    config = {**component("hidream-i1").config, **small, **narrow}
    assert sum(config["axes_dims_rope"]) == config["attention_head_dim"]

    def run(axes: list[int]) -> tuple[int, ...]:
        torch.manual_seed(0)
        network = diffusers.HiDreamImageTransformer2DModel.from_config({**config, "axes_dims_rope": axes}).eval()
        with torch.no_grad():
            out = network(
                hidden_states=torch.zeros(1, 16, 8, 8),
                timesteps=torch.tensor([5]),
                encoder_hidden_states_t5=torch.zeros(1, 4, 64),
                encoder_hidden_states_llama3=torch.zeros(2, 1, 4, 64),
                pooled_embeds=torch.zeros(1, 32),
            )
        return tuple(out[0].shape)

    assert run(config["axes_dims_rope"]) == (1, 16, 8, 8)
    with pytest.raises(IndexError):
        run([32, 32])
