"""How publishing programs differ, as existing choices: which numbers, which optimizer, what stays on the device.

A dialect adds no constants to a forecast. Each entry says where its statements were read; what could not be read there
is under `unverified`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from foretune.catalog.kernel_tables import SdpaKernel
from foretune.choices.quantize import DenoiserNumbers
from foretune.choices.step_form import NO_HABITS, TrainerHabits

Peak = Literal["allocated", "reserved", "process"]
"""Live tensors; what the caching allocator holds; what the driver says that the process takes."""
Weights = Literal["fp32", "bf16"]
IntervalMeaning = Literal["segments", "every nth block", "ignored"]
"""What a checkpoint interval of n does: n neighbours are recomputed together; every n-th block is; nothing."""


@dataclass(frozen=True, kw_only=True)
class Inference:
    """A statement that published figures suggested and the program's code does not make, or contradicts."""

    statement: str
    because: str
    """The figures that suggest it, and what the code says."""
    without: Mapping[str, Any]
    """Fields of the dialect as they would be without it."""


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
    tile_px: Mapping[str, int] = field(default_factory=dict)
    """By autoencoder: the side of the tiles that it encodes one after the other, where the program has that on."""
    expandable_segments: bool = False
    sdpa: SdpaKernel = "flash_attention_2"
    """What attention ran on Hopper, where PyTorch has two kernels: cuDNN's with torch 2.11 and later."""
    copies_cross: bool = False
    """Offloaded activations leave and return on streams of their own, both ways at once."""
    has_lokr: bool = False
    """It has LoKr adapters that work on activations with two whole matrices, as here."""
    intervals: Mapping[str, IntervalMeaning] = field(default_factory=dict)
    """By family: what a checkpoint interval means. Rows of families that are not here are left out."""
    offload_is_of_attention: frozenset[str] = frozenset()
    """Families whose activation offload moves what attention keeps, and nothing else."""
    habits: TrainerHabits = NO_HABITS
    """How the program runs a step differently. With `leaves_stay`, what is saved without a gradient (masks of dropout,
    widened 8-bit weights, the sums of attention) stays on the device; it is not recomputed either, because the hook
    that keeps it stands inside of the checkpoint's."""
    absent_targets: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By family: names among its usual targets that its model does not have; peft passes over them."""
    quantizers: Mapping[str, DenoiserNumbers] = field(default_factory=dict)
    """By how a row names them: backends whose program was read and is one of ours."""
    reads_peaks_as: Peak | None = None
    """Another figure than the rows take the published peak for."""
    reads_adapters_as: Weights | None = None
    """Other numbers than the rows take trained adapters to have."""
    sources: tuple[str, ...]
    unverified: tuple[str, ...] = ()
    inferred: tuple[Inference, ...] = ()
    """Each with the figures without it, on the page about the backtest."""

    def without(self, inference: Inference) -> "Dialect":
        """The program as it would be asked about if one statement had not been inferred."""
        return replace(self, **inference.without)

    def while_running(self) -> tuple[str, ...]:
        """What a forecast reads here beside the experiment."""
        return (
            str(self.expandable_segments),
            str(self.habits),
            *(f"{name} {side_px}" for name, side_px in sorted(self.tile_px.items())),
        )


_FIXED_TOKENS = {"sd1": 77, "sdxl": 77, "cogvideox": 226, "flux": 512, "wan": 512, "hidream": 128, "pixart": 300}

_SEGMENTED: Mapping[str, IntervalMeaning] = {
    "sd3": "segments",
    "lumina2": "segments",
    "pixart": "segments",
    "auraflow": "every nth block",
    "chroma": "every nth block",
    "sana": "every nth block",
}
"""Of SimpleTuner's families, as their code says."""

SIMPLETUNER = Dialect(
    name="simpletuner",
    adapter_weights={"bf16": "bf16"},
    full_weights="bf16",
    sdpa="cudnn",
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
    # No layer is spared but those with a side that is no multiple of 16, of which the models taken have none.
    overrides={"train": {"max_grad_norm": 2.0}, "quantize": {"keep": ()}},
    adapter_dropout=0.1,
    keeps_gradients=True,
    always_caches=True,
    has_lokr=True,
    intervals={**_SEGMENTED, "hidream": "ignored", "qwen_image": "ignored"},
    offload_is_of_attention=frozenset({"sd3"}),
    copies_cross=True,
    habits=TrainerHabits(leaves_stay=True, torchao_autograd=True),
    absent_targets={"hidream": frozenset({"to_out.0"})},
    quantizers={"fp8 (torchao dynamic)": "float8-dynamic", "fp8 weight-only (torchao)": "float8"},
    sources=(
        "github:bghira/SimpleTuner at bc8e6ab7738c",
        "setup.py: torch 2.11 or later, whose wheel brings CUDA 13 and cuDNN 9.19 (its metadata on PyPI)",
        (
            "helpers/training/optimizers/adamw_bfloat16: only bf16 weights; exp_avg, exp_avg_sq and shift like "
            "the weight, one tensor after another"
        ),
        (
            "field_registry/sections/lora.py: lora_dropout 0.1; sections/optimizer.py: max_grad_norm 2.0, "
            "clipped by value"
        ),
        (
            "helpers/models/sd3/transformer.py: hooks around attn and attn2 only; block inputs and feed-forward parts "
            "stay; helpers/training/offloaded_gradient_checkpointer.py, CPUOffloadHooks.pack: a saved tensor is moved "
            "if it is not a leaf (offload_leaf_tensors is False)"
        ),
        (
            "helpers/models/hidream/model.py: targets to_k, to_q, to_v, to_out.0; transformer.py: to_out is a layer "
            "without a number, so that it gets no adapter"
        ),
        (
            "helpers/models/*/model.py: tokenizer_max_length (SD3 154, Wan 512, AuraFlow 120, HiDream 128, "
            "PixArt 300); Lumina2 cuts the text to its mask (transformer.py, l_effective_cap_len)"
        ),
        "field_registry: set_grads_to_none is off by default, so zero_grad fills with zeros",
        "examples/multidatabackend-small-dreambooth-*.json: square crops, every caption is one character",
        (
            "documentation/experimental/SEGMENTED_CHECKPOINTING.md: validation and saving were off, caching is "
            "not in the peak; interval 2 is a segment of two blocks, stride 4 leaves every second segment as it is"
        ),
        (
            "training/gradient_checkpointing_interval.py, models/{sd3,lumina2,pixart}/transformer.py: segments within "
            "the one stack of blocks, from its first block, use_reentrant=False; Lumina2's refiners are always kept; "
            "every n-th block for the others"
        ),
        (
            "training/quantisation/__init__.py, _torchao_model and _torchao_filter_fn: "
            "Float8DynamicActivationFloat8WeightConfig() or Float8WeightOnlyConfig() on every linear layer whose "
            "sides are multiples of 16; training/quantisation/torchao_workarounds.py: a derivative for the 8-bit "
            "product, whose inputs are rounded by torchao's own differentiable operators"
        ),
        (
            "torchao 0.17 (setup.py: >=0.17.0,<0.18.0), quantize_/workflows/float8/float8_tensor.py and "
            "quant_primitives.py: linear layers are answered above autocast; weight-only multiplies with the widened "
            "weight, which autograd keeps; dynamic keeps |x|, x in fp32 and x / scale of each input"
        ),
        (
            "training/optimizer_param.py, optimi-lion: kahan_sum, foreach, no gradient release; optimi 0.3 lion.py: "
            "exp_avg and kahan_comp like the weight, 4 bytes for one in bf16, as many as Lion's state takes here; "
            "training/trainer.py: adapters are moved in weight_dtype, bf16"
        ),
        (
            "examples/{sdxl,pixart}.lycoris-lokr/lycoris_config.json: linear_dim 10000, so that both matrices are "
            "whole; bypass_mode, no dropout; SDXL: attention, factor 12; PixArt: attention 2, feed-forward 4; "
            "LyCORIS modules/lokr.py, bypass_forward: works on activations and builds no weight, as here"
        ),
    ),
    unverified=(
        "that blocks were checkpointed in the rows named activation-offload: the page does not say it of SD3",
        "34 tokens for Lumina2, 8 for Qwen-Image, 32 for Z-Image: counted by hand from the prompt templates",
        (
            "that offloaded activations leave and return on streams of their own: read in a later release's "
            "offloaded_gradient_checkpointer.py, which has two streams out and four back"
        ),
        "that attention on the H100 ran FlashAttention 2: PyTorch prefers cuDNN from version 9.15 on",
        "that the sweep's compile settings do not change the peak of the models taken",
        (
            "that gradients through an 8-bit product take what ours take: SimpleTuner's are cast to 8 bits for one "
            "moment between two operators (and lose what is below 2**-10), ours are not"
        ),
    ),
    inferred=(
        Inference(
            statement="HiDream and Qwen-Image ignore the checkpoint interval",
            because="their published peaks are equal in all modes, to 0.01 GiB, and the page says that equal figures "
            "mean an ignored option; transformer.py of both families, at the commit that was read, checkpoints every "
            "n-th block",
            without={"intervals": {**_SEGMENTED, "hidream": "every nth block", "qwen_image": "every nth block"}},
        ),
        Inference(
            statement="the published peak is max_memory_allocated",
            because="H100 and L40S differ by the 0.05 GiB of their cuBLAS workspaces; the page says peak VRAM",
            without={"reads_peaks_as": "reserved"},
        ),
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
        (
            "training/cogvideox/utils.py, get_optimizer: AdamW8bit is that of bitsandbytes; with a CPU-offloaded "
            "optimizer, torchao 0.5 prototype/low_bit_optim/cpu_offload.py: states, update and gradients are on the "
            "host, and each gradient is freed on the device as soon as it is copied, so that nothing is clipped"
        ),
    ),
    unverified=("49 frames of 720x480 for the tables (the README's own size)",),
    inferred=(
        Inference(
            statement="adapters are in fp32",
            because="the published memory before training grows with the rank as 4-byte adapters do; the script casts "
            "adapters for fp16 only",
            without={"adapter_weights": {"bf16": "bf16", "fp16": "fp32"}},
        ),
    ),
)

FINETRAINERS = Dialect(
    name="finetrainers",
    adapter_weights={"bf16": "bf16"},
    full_weights="bf16",
    num_text_tokens={"cogvideox": 226, "ltx_video": 128, "hunyuan_video": 256},
    overrides={"train": {"max_grad_norm": 1.0}},
    tile_px={"vae-ltx": 512, "vae-hunyuanvideo": 256},
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
    unverified=("that max_grad_norm was 1.0 (as in the documented command)",),
    inferred=(
        Inference(
            statement="adapters are in bf16",
            because="the published memory before training has 2 bytes for each weight of an adapter, which the rows "
            "took over; trainer.py at the tag casts adapters to fp32",
            without={"reads_adapters_as": "fp32"},
        ),
        Inference(
            statement="the autoencoder works on tiles",
            because="the documented command has tiling, the rows do not say it, and it was put in when one of them was "
            "17 % too high; tiles have the sides that diffusers sets (512 px, 256 px)",
            without={"tile_px": {}},
        ),
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
        "the same file: use_8bit_adam is AdamW8bit of bitsandbytes",
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


def dialect_of(framework: str, dialects: Sequence[Dialect] = DIALECTS) -> Dialect | None:
    """The dialect of a program by how its name begins; None where none is written down."""
    name = framework.strip().lower()
    return next((dialect for dialect in dialects if name.startswith(dialect.name)), None)


def different_program(framework: str) -> str | None:
    """Why a program cannot be expressed, where that is known."""
    name = framework.strip().lower()
    return next((reason for start, reason in DIFFERENT_PROGRAMS.items() if name.startswith(start)), None)
