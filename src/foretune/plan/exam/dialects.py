"""How publishing programs differ, as existing choices: which numbers, which optimizer, what stays on the device.

A dialect adds no constants to a forecast. Each entry says where its statements were read; what could not be read there
is under `unverified`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Weights = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One publishing program."""

    name: str
    """How the program's name begins in the rows, in lower case."""
    adapter_weights: Mapping[str, Weights]
    """Numbers of a trained adapter by precision, where the row's optimizer does not tell."""
    full_weights: Weights
    """Numbers of fully trained weights, where the row does not tell."""
    num_text_tokens: Mapping[str, int]
    """By family: what a caption is padded to; for models that drop padding, what is left of the usual caption."""
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Sections of the experiment that differ from this project's defaults."""
    adapter_dropout: float = 0.0
    keeps_gradients: bool = False
    """Gradients are filled with zeros instead of freed, so that they are there during the next pass."""
    always_caches: bool = False
    """Latents and captions are always encoded before; a row that does not say means that."""
    frees_encoders_late: bool = False
    """Encoders are loaded beside the denoiser and freed before the first step, and the peak is counted from before."""
    expandable_segments: bool = False
    every_nth_block: frozenset[str] = frozenset()
    """Families for which a checkpoint interval of n means every n-th block alone, not a segment of n blocks."""
    sources: tuple[str, ...]
    unverified: tuple[str, ...] = ()


_FIXED_TOKENS = {"sd1": 77, "sdxl": 77, "cogvideox": 226, "flux": 512, "wan": 512, "hidream": 128, "pixart": 300}

SIMPLETUNER = Dialect(
    name="simpletuner",
    adapter_weights={"bf16": "bf16"},
    full_weights="bf16",
    num_text_tokens={
        **_FIXED_TOKENS,
        "sd3": 154,  # of T5; 77 of CLIP stand before them
        "lumina2": 34,  # the system prompt and a one-character caption: the joint sequence has no padding
        "qwen_image": 8,
        "z_image": 32,
        "chroma": 512,
        "auraflow": 120,
        "kolors": 256,
        "ltx_video": 128,
        "hunyuan_video15": 1000,
        "flux2": 512,
        "sana": 300,
    },
    overrides={"train": {"max_grad_norm": 2.0}},
    adapter_dropout=0.1,
    keeps_gradients=True,
    always_caches=True,
    every_nth_block=frozenset({"auraflow", "chroma", "sana"}),
    sources=(
        "github:bghira/SimpleTuner at bc8e6ab7738c",
        (
            "helpers/training/optimizers/adamw_bfloat16: only bf16 weights; exp_avg, exp_avg_sq and shift like "
            "the weight, one tensor after another"
        ),
        (
            "field_registry/sections/lora.py: lora_dropout 0.1; sections/optimizer.py: max_grad_norm 2.0, "
            "clipped by value"
        ),
        (
            "helpers/models/*/model.py: tokenizer_max_length (SD3 154, Wan 512, AuraFlow 120, HiDream 128, "
            "PixArt 300); Lumina2 cuts the text to its mask (transformer.py, l_effective_cap_len)"
        ),
        "field_registry: set_grads_to_none is off by default, so zero_grad fills with zeros",
        "examples/multidatabackend-small-dreambooth-*.json: square crops, every caption is one character",
        (
            "documentation/experimental/SEGMENTED_CHECKPOINTING.md: validation and saving were off, caching is "
            "not in the peak; interval 2 is a segment of two blocks; "
            "training/gradient_checkpointing_interval.py for the others"
        ),
    ),
    unverified=(
        "that the published peak is max_memory_allocated (the page says peak VRAM; the rows give the reason)",
        "34 tokens for Lumina2, 8 for Qwen-Image, 32 for Z-Image: counted by hand from the prompt templates",
        "that the sweep's compile settings do not change the peak of the models taken",
    ),
)

COGVIDEOX_FACTORY = Dialect(
    name="cogvideox-factory",
    adapter_weights={"bf16": "fp32", "fp16": "fp32"},
    full_weights="fp32",
    num_text_tokens={"cogvideox": 226},
    overrides={"train": {"max_grad_norm": 1.0}},
    frees_encoders_late=True,
    sources=(
        (
            "github:a-r-r-o-w/cogvideox-factory at 223add1a5944, "
            "training/cogvideox/cogvideox_text_to_video_lora.py: T5, VAE and transformer are moved to the "
            "device in 16 bits; peaks are reset; with load_tensors the encoders are freed and the cache emptied"
            " before the first step; clip_grad_norm_ 1.0; no adapter dropout"
        ),
        (
            "README.md, memory_before_training: grows with the rank as 4-byte adapters in 2 MiB and 20 MiB "
            "segments do (CogVideoX-5b: 19.742, 20.006, 20.771 GiB for ranks 16, 64, 256), and is 4 bytes a "
            "weight for full training"
        ),
        "README.md: memory_before_validation is the peak of training, from prepared latents and embeddings",
    ),
    unverified=(
        (
            "that adapters were fp32 in the measured run: the script casts them for fp16 only, the published "
            "memory before training says that they were"
        ),
        "49 frames of 720x480 for the tables (the README's own size)",
    ),
)

FINETRAINERS = Dialect(
    name="finetrainers",
    adapter_weights={"bf16": "bf16"},
    full_weights="bf16",
    num_text_tokens={"cogvideox": 226, "ltx_video": 128, "hunyuan_video": 256},
    overrides={"train": {"max_grad_norm": 1.0}},
    sources=(
        (
            "github:a-r-r-o-w/finetrainers at v0.0.1, docs/training/*.md: bf16, rank 128, batch 1, AdamW, "
            "tables of memory_allocated and max_memory_reserved by stage; the stage before validation is the "
            "published peak"
        ),
        "the same tables: 2 bytes a weight before and 4 more after the first step, for adapters and full training",
        (
            "finetrainers/models/*/lora.py: max_sequence_length 226, 128, 256; trainer.py: without "
            "precomputation the VAE and the text encoders encode inside the step; peaks are reset after "
            "precomputation"
        ),
    ),
    unverified=(
        (
            "that adapters were bf16 in the measured run: trainer.py at the tag casts them to fp32, the tables "
            "say 2 bytes"
        ),
        (
            "that the VAE ran with slicing and tiling in the rows without precomputation (the documented "
            "command has both)"
        ),
        "that max_grad_norm was 1.0 (as in the documented command)",
    ),
)

DIFFUSERS = Dialect(
    name="diffusers",
    adapter_weights={"bf16": "bf16", "fp16": "fp32", "fp32": "fp32"},
    full_weights="fp32",
    num_text_tokens={**_FIXED_TOKENS, "sd3": 77, "qwen_image": 512, "sana": 300, "lumina2": 256},
    overrides={"train": {"max_grad_norm": 1.0}},
    sources=(
        (
            "github:huggingface/diffusers, examples/dreambooth/train_dreambooth_lora_hidream.py: the base is "
            "moved to the device in the 16-bit type before adapters are added; adapters are cast to fp32 for "
            "fp16 only"
        ),
    ),
    unverified=("the other example scripts were not read one by one; they share the code of this one",),
)

DIALECTS: tuple[Dialect, ...] = (SIMPLETUNER, COGVIDEOX_FACTORY, FINETRAINERS, DIFFUSERS)

DIFFERENT_PROGRAMS: Mapping[str, str] = {
    "fast-dit": "its own DiT code (not the blocks of diffusers), with the VAE and a second model (the average) on the "
    "device, and a figure of the whole process",
    "torchtitan": "its own FLUX code, sharded over several devices",
    "denoising-diffusion-pytorch": "its own UNet code",
    "nemo": "a code base of its own, which was not read",
    "tensorflow": "TensorFlow, not torch",
    "maxdiffusion": "JAX or Habana, not torch",
    "mosaicml": "a code base of its own, which was not read",
    "sat": "a code base of its own, which was not read",
}
"""Programs that no set of choices turns into ours, by how their name begins."""


def dialect_of(framework: str) -> Dialect | None:
    """The dialect of a program by how its name begins; None where none is written down."""
    name = framework.strip().lower()
    return next((dialect for dialect in DIALECTS if name.startswith(dialect.name)), None)


def different_program(framework: str) -> str | None:
    """Why a program cannot be expressed, where that is known."""
    name = framework.strip().lower()
    return next((reason for start, reason in DIFFERENT_PROGRAMS.items() if name.startswith(start)), None)
