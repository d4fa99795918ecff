"""The words of published columns, read tolerantly: what is not understood is a reason, never a crash."""

import re
from dataclasses import dataclass, replace
from typing import Literal

from foretune import catalog
from foretune.backtests.questions import Peak, Unfit
from foretune.choices.optimizers import OptimizerKind
from foretune.choices.quantize import DenoiserNumbers
from foretune.config.from_trainers.dialects import Dialect, IntervalMeaning

_ALIASES = {
    "z-image-turbo": "z-image",
    "ltx-video-0.9.5": "ltx-video-0.9",
    "ltx-video": "ltx-video-0.9",
    "chroma1": "chroma",
    "kolors": "kolors-unet",
    "stable-diffusion-v2-unet": "sd2-unet",
    "sd2": "sd2-unet",
    "sd1.5": "sd1.5-unet",
    "sd1.4-1.5": "sd1.5-unet",
    "sdxl": "sdxl-unet",
    "sdxl-base-1.0": "sdxl-unet",
    "hidream-i1-full": "hidream-i1",
    "hidream-i1-dev": "hidream-i1",
    "auraflow-v0.3": "auraflow",
    "dit-xl-2": "dit-xl-2-256",
    "flux.1-12b": "flux.1-dev",
    "wan2.2-t2v-a14b": "wan2.2-a14b-t2v-expert",
    "wan2.2-i2v-a14b": "wan2.2-a14b-i2v-expert",
}
_SIZE_BY_LINES = {"480p": (832, 480), "720p": (1280, 720)}
_SIXTEEN_BIT = ("bf16", "fp16")
_UNKNOWN = ("unknown", "any", "n/a", "")
# What an optimizer's name holds that no choice expresses, or whose program was not read, with the words of the reason.
_OTHER_OPTIMIZERS = {
    "8bitkahan": "8-bit states with a compensation",
    "lion8bit": "the optimizer Lion with 8-bit states",
    "paged": "paged optimizer states",
    "prodigy": "the optimizer Prodigy, whose states in this program were not read",
    "adafactor": "the optimizer Adafactor, whose states in this program were not read",
    "adamw optimi": "AdamW of optimi, whose states in this program were not read",
    "distributed": "sharded optimizer states",
    "deepspeed": "sharded or offloaded optimizer states",
    "schedule": "a schedule-free optimizer, whose states in this program were not read",
}
# Why a backend is no choice of ours. First come, first served.
_OTHER_QUANTIZERS = {
    "sdnq": "a base quantised by SDNQ: its licence (GPL) rules it out as a dependency, and its compiled kernels have "
    "temporaries that no trace shows",
    "quanto": "a base quantised by quanto, which is no backend here",
    "": "a quantised base whose program was not read",
}


@dataclass(frozen=True)
class Resolution:
    width_px: int
    height_px: int
    num_frames: int | None
    """Where the text gives frames too (49x512x768)."""
    assumption: str | None


def model_named(text: str) -> str:
    """The catalogue's denoiser that a published name means."""
    plain = re.sub(r"\([^)]*\)", " ", text).strip().lower()
    key = re.sub(r"[\s_/]+", "-", plain).strip("-")
    name = _ALIASES.get(key, key)
    if name not in catalog.denoisers():
        raise Unfit(f"the model {text!r} is not in the catalogue")
    return name


def resolution_in(text: str | None) -> Resolution:
    """Width and height in pixels. Two numbers are width and height; three are frames, height and width."""
    words = (text or "").lower()
    if words.startswith(_UNKNOWN[0]) or not words:
        raise Unfit("the resolution is not stated")
    if any(mark in words for mark in ("mix", "seq len", "tokens")) or re.search(r"\d+\s*/\s*\d+", words):
        raise Unfit(f"the resolution {text!r} is not one size")
    note = f"resolution {text!r}: the first size is taken" if _leaves_open(words) else None
    if triple := re.match(r"(\d+)\s*x\s*(\d+)\s*x\s*(\d+)", words):
        frames, height, width = map(int, triple.groups())
        return Resolution(width, height, frames, note)
    if pair := re.match(r"(\d+)\s*[x×]\s*(\d+)", words):
        return Resolution(int(pair[1]), int(pair[2]), None, note)
    if lines := re.match(r"(\d+p)\b", words):
        if lines[1] not in _SIZE_BY_LINES:
            raise Unfit(f"the resolution {text!r} is not understood")
        width, height = _SIZE_BY_LINES[lines[1]]
        return Resolution(width, height, None, f"{lines[1]} is {width}x{height}")
    if side := re.match(r"(\d+)\b", words):
        return Resolution(int(side[1]), int(side[1]), None, note)
    raise Unfit(f"the resolution {text!r} is not understood")


def _leaves_open(words: str) -> bool:
    return any(mark in words for mark in (" or ", "assumed", "page", "half", "bucket", "example"))


def precision_in(text: str | None) -> tuple[Literal["fp32", "bf16", "fp16"], Literal["fp32", "bf16"] | None]:
    """Numbers of the computation, and of the trained weights where the row tells."""
    words = (text or "").lower()
    if "fp8" in words or "float8" in words:
        raise Unfit(f"computation in 8-bit numbers ({text})")
    if "/" in words.partition("(")[0] and "fp32 params" not in words:
        raise Unfit(f"the precision {text!r} is not one precision")
    named = [name for name in (*_SIXTEEN_BIT, "fp32") if name in words]
    if not named:
        raise Unfit(f"the precision {text!r} is not understood" if words else "the precision is not stated")
    compute: Literal["fp32", "bf16", "fp16"] = (
        "bf16" if named[0] == "bf16" else "fp16" if named[0] == "fp16" else "fp32"
    )
    if words.startswith(("full bf16", "pure bf16")):
        return "bf16", "bf16"
    return compute, "fp32" if "fp32" in named or compute == "fp32" else None


@dataclass(frozen=True)
class OptimizerWords:
    kind: OptimizerKind
    weights: Literal["fp32", "bf16"] | None
    """Numbers of the trained weights, where the optimizer tells."""
    kahan: bool
    ema: bool
    on_host: bool
    """States and update are on the host, and each gradient is freed as soon as it was copied there."""


def optimizer_in(text: str | None) -> OptimizerWords:
    words = (text or "").lower()
    if words.split(" ")[0] in _UNKNOWN:
        raise Unfit("the optimizer is not stated")
    for mark, what in _OTHER_OPTIMIZERS.items():
        if mark in words:
            raise Unfit(f"{what} ({text})")
    on_host = "offload" in words
    if on_host and "grad offload" not in words:
        raise Unfit(f"whether gradients are offloaded with the optimizer is not stated ({text})")
    if words.startswith("optimi-lion"):
        # Its average and what rounding takes are two states in bf16: the bytes of Lion's one state in fp32 here.
        return OptimizerWords("lion", "bf16", kahan=False, ema=False, on_host=False)
    if not words.startswith("adam"):
        raise Unfit(f"the optimizer {text!r} is not understood")
    kahan = "adamw_bf16" in words or "kahan" in words
    states_bf16 = kahan or "dtype bf16" in words
    kind: OptimizerKind = "adamw8bit" if "8bit" in words or "8-bit" in words else "adamw"
    return OptimizerWords(kind, "bf16" if states_bf16 else None, kahan, "ema" in words, on_host)


def quantizer_in(text: str | None, dialect: Dialect) -> DenoiserNumbers:
    """The backend and numbers of the base; a text encoder that is quantised beside it is a reason."""
    words = (text or "none").lower()
    if words in dialect.quantizers:
        return dialect.quantizers[words]
    if not words.startswith("none"):
        why = next(why for mark, why in _OTHER_QUANTIZERS.items() if mark in words)
        raise Unfit(f"{why} ({text})")
    if "8-bit" in words:
        raise Unfit(f"a quantised text encoder ({text})")
    return "none"


@dataclass(frozen=True)
class Checkpointing:
    share: float
    """Of the segments that are recomputed."""
    segment: int = 1
    """Blocks in a segment."""
    stride: int | None = None
    """A segment begins at every Nth block; None where the share decides."""
    offloads_attention: bool = False
    """What attention keeps is on the host."""


def checkpointing_in(
    text: str | None, meaning: IntervalMeaning | None, *, offloads_attention: bool = False
) -> Checkpointing:
    """Which blocks are recomputed; `meaning` is what an interval is in this program for this family, if known."""
    words = (text or "").lower()
    if offload := re.fullmatch(r"(full|partial seg\d+-stride\d+) \+ (?:attention )?activation offload", words):
        if not offloads_attention:
            raise Unfit(f"what activation offload moves in this family is not known ({text})")
        return replace(checkpointing_in(offload[1], meaning), offloads_attention=True)
    if "offload" in words:
        raise Unfit(f"an activation offload that is not understood ({text})")
    if partial := re.fullmatch(r"partial (?:interval\s*(\d+)|seg(\d+)-stride(\d+))", words):
        return _segments(int(partial[1] or partial[2]), int(partial[3]) if partial[3] else None, meaning, words)
    if "partial" in words or "seg" in words or "stride" in words:
        raise Unfit(f"checkpointing {text!r}")
    if words.startswith(("full", "assumed full")) and "low_vram" not in words:
        return Checkpointing(1.0)
    if re.match(r"(none|no|off|false)\b", words):
        return Checkpointing(0.0)
    is_unknown = words.split(" ")[0] in _UNKNOWN
    raise Unfit("gradient checkpointing is not stated" if is_unknown else f"checkpointing {text!r}")


def _segments(interval: int, stride: int | None, meaning: IntervalMeaning | None, words: str) -> Checkpointing:
    if meaning == "ignored":
        return Checkpointing(1.0)
    if meaning == "segments":
        return Checkpointing(1.0, interval, stride)
    if meaning == "every nth block" and stride is None:
        return Checkpointing(1 / interval)
    raise Unfit(f"what checkpoint segments do in this family is not known ({words})")


def kronecker_factor_in(text: str | None) -> int:
    """The one factor of a LoKr whose two matrices are whole."""
    if factor := re.fullmatch(r"factor (\d+)(?: full_matrix)?", (text or "").lower()):
        return int(factor[1])
    raise Unfit(f"LoKr with another factor for each kind of layer, or an unknown one ({text})")


def targets_in(text: str | None) -> tuple[str, ...] | None:
    """Ends of the adapted modules' names; None is the family's attention projections."""
    words = (text or "").partition("(")[0].strip()
    if words.lower() in ("", "attn", "attention"):
        return None
    names = tuple(name for name in re.split(r"[,\s]+", words.removeprefix("attn")) if name)
    if all(re.fullmatch(r"to_[a-z]+(\.\d+)?", name) for name in names):
        return names
    raise Unfit(f"adapters on {text!r}")


def is_cached(text: str | None, *, unless_said: bool | None) -> bool:
    words = (text or "").lower()
    if re.match(r"(yes|true|precomputed|n/a|offline)\b", words):
        return True
    if re.match(r"(no|false|encoders resident)\b", words):
        return False
    if unless_said is None:
        raise Unfit("whether latents and captions were cached is not stated")
    return unless_said


def peak_in(text: str | None) -> Peak:
    """Which figure a published peak is."""
    words = (text or "").lower()
    if "after backward" in words:
        raise Unfit("the figure is the memory after the backward pass, not a peak")
    if "validation" in words:
        raise Unfit("the figure includes sampling for validation")
    if "allocated" in words or "profiler" in words:
        return "allocated"
    if "reserved" in words:
        return "reserved"
    if "nvidia-smi" in words:
        return "process"
    raise Unfit(f"the row does not say which peak it reports ({text})")


def device_named(text: str, memory_gb: float | None) -> str | None:
    """The catalogue's device that a published name means; None where it could be several of unlike memory.

    Of alternatives (H100/H800) the first that is in the catalogue counts.
    """
    alternatives = re.sub(r"\([^)]*\)", " ", text).split("/")
    named = [name for words in alternatives for name in catalog.device_names().fitting(words)]
    fitting = [name for name in named if memory_gb is None or catalog.device(name).memory_gb == memory_gb]
    return fitting[0] if len({catalog.device(name).memory_gb for name in fitting}) == 1 else None
