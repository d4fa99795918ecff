"""Random CLIP, T5 and Qwen text encoders of two layers, scaled so that the embeddings of captions differ.

They are not trained: they are hash functions whose output a denoiser can learn to read.
"""

from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
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


def build_t5(tokenizer: T5Tokenizer, *, dim: int) -> T5EncoderModel:
    """Builds the encoder half of a T5 v1.1 of width `dim`."""
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=dim,
        d_kv=HEAD_DIM,
        d_ff=2 * dim,
        num_layers=NUM_LAYERS,
        num_heads=dim // HEAD_DIM,
        feed_forward_proj="gated-gelu",
        is_encoder_decoder=False,
        use_cache=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return T5EncoderModel(config).eval()


def build_qwen3(tokenizer: Qwen2Tokenizer, *, dim: int) -> Qwen3Model:
    """Builds a Qwen3 language model of width `dim`, without the layer that predicts the next token."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=dim,
        intermediate_size=2 * dim,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=dim // HEAD_DIM,
        num_key_value_heads=dim // HEAD_DIM // 2,
        head_dim=HEAD_DIM,
        max_position_embeddings=1024,
        initializer_range=dim**-0.5,  # so that layers change what they read as much as in a trained model
        use_cache=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3Model(config).eval()
