"""Random CLIP, T5, UMT5, Qwen, Llama and Gemma text encoders, and a CLIP image encoder, with distinct embeddings.

They are not trained: they are hash functions whose output a denoiser can learn to read.
"""

from typing import Any

import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    CLIPVisionConfig,
    CLIPVisionModel,
    Gemma2Config,
    Gemma2Model,
    GemmaTokenizer,
    LlamaConfig,
    LlamaModel,
    LlamaTokenizerFast,
    PreTrainedTokenizerBase,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
    UMT5Config,
    UMT5EncoderModel,
)

NUM_LAYERS = 2
HEAD_DIM = 8
# Factor for the standard deviation of all initial weights. Mean distance between captions that differ in a word or two,
# as a share of the norm: 0.10 to 0.20 at 1.0, 0.16 to 0.32 at 2.0. Above that, token embeddings become larger than
# T5's, which have deviation 1.
CLIP_INIT_FACTOR = 2.0


def build_clip(
    tokenizer: CLIPTokenizer, *, dim: int, projected: bool, hidden_act: str = "quick_gelu"
) -> CLIPTextModel | CLIPTextModelWithProjection:
    """Builds a CLIP text encoder of width `dim`; `projected` adds the projection that Stable Diffusion 3 pools."""
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=dim,
        intermediate_size=2 * dim,
        projection_dim=dim,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=dim // HEAD_DIM,
        max_position_embeddings=tokenizer.model_max_length,
        hidden_act=hidden_act,
        initializer_factor=CLIP_INIT_FACTOR,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config).eval()


def build_clip_vision(*, dim: int, image_size_px: int, patch_size_px: int) -> CLIPVisionModel:
    """Builds a CLIP image encoder of width `dim`, with a token for each patch and one for the image."""
    config = CLIPVisionConfig(
        hidden_size=dim,
        intermediate_size=2 * dim,
        projection_dim=dim,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=dim // HEAD_DIM,
        image_size=image_size_px,
        patch_size=patch_size_px,
        hidden_act="gelu",
        initializer_factor=CLIP_INIT_FACTOR,
    )
    return CLIPVisionModel(config).eval()


def build_t5(tokenizer: T5Tokenizer, *, dim: int) -> T5EncoderModel:
    """Builds the encoder half of a T5 v1.1 of width `dim`."""
    return T5EncoderModel(T5Config(**_t5_sizes(tokenizer, dim))).eval()


def build_umt5(tokenizer: T5Tokenizer, *, dim: int) -> UMT5EncoderModel:
    """Builds the encoder half of a UMT5 of width `dim`: a T5 with position biases of its own in each layer."""
    model = UMT5EncoderModel(UMT5Config(**_t5_sizes(tokenizer, dim)))
    with torch.no_grad():
        # Wan fills captions up with zeros, without a mask, which takes most of an embedding's deviation away.
        model.encoder.final_layer_norm.weight.fill_(2.0)
    return model.eval()


def _t5_sizes(tokenizer: T5Tokenizer, dim: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "d_model": dim,
        "d_kv": HEAD_DIM,
        "d_ff": 2 * dim,
        "num_layers": NUM_LAYERS,
        "num_heads": dim // HEAD_DIM,
        "feed_forward_proj": "gated-gelu",
        "is_encoder_decoder": False,
        "use_cache": False,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def build_qwen3(tokenizer: Qwen2Tokenizer, *, dim: int, num_skipped_layers: int = 0) -> Qwen3Model:
    """Builds a Qwen3 language model of width `dim`, without the layer that predicts the next token."""
    model = Qwen3Model(Qwen3Config(**_language_model_sizes(tokenizer, dim, num_skipped_layers)))
    return _with_larger_embeddings(model, dim) if num_skipped_layers else model.eval()


def build_qwen2_5_vl(tokenizer: Qwen2Tokenizer, *, dim: int) -> Qwen2_5_VLForConditionalGeneration:
    """Builds a Qwen2.5-VL of width `dim`: a language model, and the vision model that captions do not use."""
    text = _language_model_sizes(tokenizer, dim, 0)
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [HEAD_DIM // 4, HEAD_DIM // 8, HEAD_DIM // 8]}
    vision = {"depth": 1, "hidden_size": dim, "intermediate_size": 2 * dim, "num_heads": 2, "out_hidden_size": dim}
    config = Qwen2_5_VLConfig(
        text_config={**text, "rope_parameters": rope, "bos_token_id": None},
        vision_config={**vision, "fullatt_block_indexes": [0]},
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2_5_VLForConditionalGeneration(config).eval()


def build_gemma2(tokenizer: GemmaTokenizer, *, dim: int) -> Gemma2Model:
    """Builds a Gemma 2 of width `dim`, with a further layer because Lumina 2 reads the last layer but one."""
    sizes = _language_model_sizes(tokenizer, dim, 1)
    # It multiplies embeddings by the root of its width itself.
    return Gemma2Model(Gemma2Config(**sizes, query_pre_attn_scalar=HEAD_DIM)).eval()


def build_llama(tokenizer: LlamaTokenizerFast, *, dim: int, num_skipped_layers: int) -> LlamaModel:
    """Builds a Llama of width `dim`, with further layers for a pipeline that skips the last ones and their norm."""
    sizes = _language_model_sizes(tokenizer, dim, num_skipped_layers)
    return _with_larger_embeddings(LlamaModel(LlamaConfig(**sizes, bos_token_id=tokenizer.bos_token_id)), dim)


def _language_model_sizes(tokenizer: PreTrainedTokenizerBase, dim: int, num_skipped_layers: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": dim,
        "intermediate_size": 2 * dim,
        "num_hidden_layers": NUM_LAYERS + num_skipped_layers,
        "num_attention_heads": dim // HEAD_DIM,
        "num_key_value_heads": dim // HEAD_DIM // 2,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 1024,
        "initializer_range": dim**-0.5,  # so that layers change what they read as much as in a trained model
        "use_cache": False,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _with_larger_embeddings(model: Any, dim: int) -> Any:
    """Sets embeddings to deviation 1, for a pipeline that reads what no norm follows."""
    with torch.no_grad():
        model.embed_tokens.weight.mul_(dim**0.5)
    return model.eval()
