"""Which files of a repository training needs."""

from foretune.hub.selection import needed_files, part_of

INDEX = {
    "_class_name": "FluxPipeline",
    "_diffusers_version": "0.30.0",
    "transformer": ["diffusers", "FluxTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "image_encoder": [None, None],
    "..": ["diffusers", "AutoencoderKL"],
}
NEEDED = [
    "model_index.json",
    "text_encoder/config.json",
    "text_encoder/model.safetensors",
    "tokenizer/chat_template.jinja",
    "tokenizer/merges.txt",
    "tokenizer/spiece.model",
    "transformer/config.json",
    "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
    "transformer/diffusion_pytorch_model-00002-of-00002.safetensors",
    "transformer/diffusion_pytorch_model.safetensors.index.json",
    "vae/diffusion_pytorch_model.safetensors",
]
NOT_NEEDED = [
    "../refs.json",
    "README.md",
    "flux1-dev.safetensors",
    "image_encoder/model.safetensors",
    "modeling.py",
    "text_encoder/flax_model.msgpack",
    "text_encoder/model.bf16-00001-of-00002.safetensors",
    "text_encoder/model.fp16.safetensors",
    "text_encoder/model.safetensors.index.fp16.json",
    "text_encoder/pytorch_model.bin",
    "text_encoder_2/model.safetensors",
    "transformer/deeper/config.json",
    "transformer/diffusion_pytorch_model.ckpt",
    "transformer/diffusion_pytorch_model.fp16.safetensors.index.json",
    "transformer/diffusion_pytorch_model.non_ema.safetensors",
    "transformer/hook.py",
    "transformer/model.onnx",
    "transformer/weights.pt",
]


def test_a_pipeline_without_pickles_code_and_second_dtypes() -> None:
    assert needed_files([*NOT_NEEDED, *NEEDED], INDEX, "transformer") == NEEDED


def test_the_oldest_checkpoints_have_everything_beside_the_index() -> None:
    flat = ["config.json", "diffusion_pytorch_model.safetensors", "model_index.json"]
    others = ["diffusion_pytorch_model.bin", "diffusion_pytorch_model.fp16.safetensors", "samples/one.json"]
    assert needed_files([*others, *flat], {"unet": ["diffusers", "UNet2DModel"]}, "unet") == flat


def test_parts_are_folders() -> None:
    assert [part_of(path) for path in ("vae/config.json", "model_index.json")] == ["vae", "pipeline"]
