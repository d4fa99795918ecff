"""Advice in words: what settings do, what they change in the result, and what they cost."""

from collections.abc import Iterator, Mapping

from foretune.choices.earlier_keys import current_key
from foretune.core.units import bytes_text, duration_text, memory_text, rounded_share_text, share_text
from foretune.core.values.plan import Remedy

_BITS = {"int8": "8", "float8": "8", "int8-bnb": "8", "nf4": "4"}
_HARDLY = 0.001
"""Shares of computation below this are not worth a word."""


def settings_text(settings: Mapping[str, str]) -> str:
    """Settings as they are typed: key=value, an option with its value, an environment variable first."""
    variables = [f"{key}={value}" for key, value in settings.items() if key.isupper()]
    keys = [f"{key}={value}" for key, value in settings.items() if not key.isupper() and not key.startswith("--")]
    options = [f"{key} {value}" for key, value in settings.items() if key.startswith("--")]
    return " ".join([*variables, *keys, *options])


def memory_of(remedy: Remedy) -> str:
    """The memory with these settings, or what they save where an earlier release said only that."""
    if remedy.process_bytes is None:
        return f"saves {bytes_text(remedy.saves_bytes)}"
    return memory_text(remedy.process_bytes)


def effect_text(remedy: Remedy) -> str:
    """What the settings are and what they change: one sentence."""
    found = list(_effects(remedy.settings))
    if remedy.kind == "adapter":
        found = ["LoRA instead of full fine-tuning", *found]
    text = "; ".join(found) if found else "other settings"
    same = "same result: " if not remedy.changes_the_result else ""
    return f"{same}{text}"


def cost_text(remedy: Remedy) -> str:
    """Recomputation and host traffic. What costs neither says so."""
    costs = []
    share = remedy.extra_flops_share
    if remedy.slowdown_share is not None:
        longer = f"{remedy.slowdown_share * 100:+.0f} %"
        costs.append("the same step time" if longer in ("+0 %", "-0 %") else f"{longer} step time")
    elif abs(share) >= _HARDLY:
        costs.append(f"{share_text(abs(share))} {'more' if share > 0 else 'less'} computation per sample")
    if remedy.moves_bytes > 0:
        costs.append(f"+{memory_text(remedy.moves_bytes)} host-device traffic per step{_transfer_text(remedy)}")
    if remedy.host_bytes is not None and (remedy.moves_bytes > 0 or remedy.host_verdict == "tight"):
        tight = ", tight" if remedy.host_verdict == "tight" else ""
        costs.append(f"{memory_text(remedy.host_bytes)} host memory{tight}")
    words = ", ".join(costs) if costs else "no host traffic, no recomputation"
    # A quantised base that is tight is offered only where it fits without a desktop.
    is_tight_base = remedy.kind == "quantised base" and remedy.verdict == "tight"
    return f"{words}; fits if no desktop uses the card" if is_tight_base else words


def _transfer_text(remedy: Remedy) -> str:
    """The time of the traffic in parentheses, and how much of it costs nothing."""
    words = []
    if remedy.least_transfer_s is not None:
        words.append(f"at least {duration_text(remedy.least_transfer_s)}")
    if remedy.hidden_copy_share:
        words.append(f"{rounded_share_text(remedy.hidden_copy_share)} hidden behind computation")
    return f" ({', '.join(words)})" if words else ""


def _effects(settings: Mapping[str, str]) -> Iterator[str]:  # noqa: PLR0912 - one line for each setting
    for key, value in settings.items():
        # Plans of earlier releases have the keys of their time.
        match current_key(key), value:
            case "parallel.sharding", "full":
                yield "weights, gradients and optimizer states sharded over the devices, gathered block by block"
            case "quantize.denoiser", _:
                yield f"quantised base, frozen weights rounded to {_BITS.get(value, value)} bits"
            case "quantize.text_encoders", _:
                yield f"text encoders rounded to {_BITS.get(value, value)} bits"
            case "levers.block_swap", _:
                yield f"block swap, {value} blocks wait in host memory"
            case "levers.block_swap_prefetch", "0":
                yield "each is copied when it runs"
            case "levers.gradient_checkpointing", _:
                yield _checkpointing(value)
            case "levers.activation_offload", "true":
                yield "activations wait in host memory"
            case "levers.optimizer_offload", "true":
                yield "optimizer states and fp32 weights on the host"
            case "levers.ema_offload", "true":
                yield "moving average in host memory"
            case "levers.cache_latents" | "levers.cache_text", "true":
                yield f"{'latents' if 'latents' in key else 'captions'} cached before training"
            case "levers.vae_tiling", "true":
                yield "autoencoder in tiles"
            case "levers.fused_backward", "true":
                yield "updates in the backward pass, without gradient clipping or accumulation"
            case "train.batch_size", _:
                yield f"batches of {value}"
            case "train.weight_dtype", "bf16":
                yield (
                    "weights on the device in bf16"
                    if "levers.optimizer_offload" in settings
                    else "trained weights in bf16"
                )
            case "optimizer.kind", "adamw8bit":
                yield "AdamW states in 8 bits"
            case "optimizer.kind", "adafactor":
                yield "Adafactor, hardly any optimizer state"
            case "optimizer.compensation", "stochastic":
                yield "stochastic rounding"
            case "train.ema", "null":
                yield "no moving average"
            case "method.rank", _:
                yield f"rank {value}"
            case "data.resolution", _:
                yield f"shorter side {value} px" if value.isdecimal() else f"{value} px"
            case "data.num_frames", _:
                yield f"clips of {value} frames"
            case "PYTORCH_ALLOC_CONF", _:
                yield "expandable segments, less fragmentation"
            case _:
                pass  # what goes with another setting and says nothing of its own


def _checkpointing(share: str) -> str:
    if float(share) == 0:
        return "gradient checkpointing off"
    return f"gradient checkpointing on {'all' if float(share) == 1 else share_text(float(share)) + ' of the'} blocks"
