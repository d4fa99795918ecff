"""Trainings whose memory is forecast and then measured: small models, shapes that no rule was made from."""

import itertools
import random
from dataclasses import astuple, dataclass, fields
from typing import Any, Protocol

from foretune.choices.experiment import Experiment
from foretune.models import FAMILIES
from foretune.models.family import Architecture, Family
from foretune.trace.tracing import StepSizes

_SEED = 1415
_NUM_DRAWN = 60
"""Candidates for each row of the table."""
_METHODS: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "lora-4": {"kind": "lora", "rank": 4},
    "lora-32": {"kind": "lora", "rank": 32},
    "lora-8-dropout": {"kind": "lora", "rank": 8, "dropout": 0.1},
}
_VALUES: dict[str, tuple[Any, ...]] = {
    "family": ("ddpm", "sd3", "flux"),
    "method": tuple(_METHODS),
    "precision": ("fp32", "bf16", "fp16"),
    "width": ("narrow", "wide"),
    "batch_size": (1, 2, 5),
    "size": ("small", "middle", "large"),
    "checkpointing": (0.0, 0.5, 1.0),
    "accumulation": (1, 2),
    "has_ema": (False, True),
    "num_threads": (1, 2),
}
DEPTHS = {"sd3": (4, 0), "flux": (2, 3)}
"""Blocks, by kind."""
_PIXELS = {"tiny": 16, "small": 24, "middle": 40, "large": 56}
_LATENT_PIXELS = {"tiny": 80, "small": 112, "middle": 176, "large": 240}
_TEXT_TOKENS = {"tiny": 9, "small": 20, "middle": 33, "large": 70}
_VAE = {"block_out_channels": [1, 1, 1, 1], "latent_channels": 16, "scaling_factor": 1.5, "shift_factor": 0.06}


class Training(Protocol):
    """What can be forecast and measured."""

    @property
    def accumulation(self) -> int: ...

    def model(self) -> Family: ...

    def sizes(self) -> StepSizes: ...

    def experiment(self) -> Experiment: ...


@dataclass(frozen=True)
class Case:
    """One training."""

    family: str
    method: str
    precision: str
    width: str
    batch_size: int
    size: str
    checkpointing: float
    accumulation: int
    has_ema: bool
    num_threads: int

    def tiny(self) -> "Case":
        """A smaller training of the same kind: what a process loads and sets up for any of them, it has then."""
        return Case(self.family, self.method, self.precision, "narrow", 1, "tiny", 0.0, 1, False, self.num_threads)

    def is_possible(self) -> bool:
        """oneDNN has no fp16 kernel for the weights' gradient of a convolution: a step takes minutes instead."""
        return not (self.family == "ddpm" and self.method == "full" and self.precision == "fp16")

    def model(self) -> Family:
        is_wide = self.width == "wide"
        if self.family == "ddpm":
            return _unet(48 if is_wide else 32)
        num_heads, head_dim = (10, 48) if is_wide else (7, 56)
        return transformer(self.family, num_heads, head_dim, DEPTHS[self.family])

    def sizes(self) -> StepSizes:
        is_pixels = self.family == "ddpm"
        side_px = (_PIXELS if is_pixels else _LATENT_PIXELS)[self.size]
        # A UNet's images are small: it gets more of them.
        return StepSizes(
            batch_size=self.batch_size * (3 if is_pixels else 1),
            height_px=side_px,
            width_px=side_px,
            num_text_tokens=0 if is_pixels else _TEXT_TOKENS[self.size],
        )

    def experiment(self) -> Experiment:
        return Experiment.model_validate(
            {
                "model": "small",
                "method": _METHODS[self.method],
                "data": {"kind": "shapes"},
                "train": {
                    "steps": 2,
                    "precision": self.precision,
                    "gradient_accumulation": self.accumulation,
                    "ema": {} if self.has_ema else None,
                },
                "levers": {"gradient_checkpointing": self.checkpointing},
            }
        )


def cases(num_cases: int) -> list[Case]:
    """The first rows of a fixed table; each row adds as many new pairs of values as any of those drawn for it."""
    draw = random.Random(_SEED)
    chosen: list[Case] = []
    met: set[tuple[int, int, Any, Any]] = set()
    while len(chosen) < num_cases:
        drawn = (Case(**{name: draw.choice(values) for name, values in _VALUES.items()}) for _ in range(_NUM_DRAWN))
        fresh = [case for case in drawn if case.is_possible() and case not in chosen]
        best = max(fresh, key=lambda case: len(_pairs(case) - met))
        chosen.append(best)
        met |= _pairs(best)
    return chosen


def share_of_pairs(rows: list[Case]) -> float:
    """Of all pairs of values that can be together, how many are in some row."""
    possible = {
        (i, j, a, b)
        for i, j in itertools.combinations(range(len(fields(Case))), 2)
        for a, b in itertools.product(tuple(_VALUES.values())[i], tuple(_VALUES.values())[j])
    }
    return len(set().union(*map(_pairs, rows))) / len(possible)


def _pairs(case: Case) -> set[tuple[int, int, Any, Any]]:
    values = astuple(case)
    return {(i, j, values[i], values[j]) for i, j in itertools.combinations(range(len(values)), 2)}


def _unet(width: int) -> Family:
    config = {
        "sample_size": 32, "in_channels": 3, "out_channels": 3, "time_embedding_type": "positional",
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        "block_out_channels": (width, 2 * width, 3 * width), "layers_per_block": 2, "downsample_padding": 0,
        "act_fn": "silu", "attention_head_dim": None, "norm_num_groups": 16, "norm_eps": 1e-6,
    }  # fmt: skip
    return FAMILIES["ddpm"](Architecture(config, None, {"num_train_timesteps": 1000, "beta_schedule": "linear"}))


def transformer(family: str, num_heads: int, head_dim: int, depths: tuple[int, int]) -> Family:
    """A small model; FLUX has two kinds of blocks."""
    config: dict[str, Any] = {
        "attention_head_dim": head_dim,
        "num_attention_heads": num_heads,
        "joint_attention_dim": 288,
        "pooled_projection_dim": 160,
    }
    if family == "sd3":
        config |= {
            "sample_size": 32, "patch_size": 2, "in_channels": 16, "out_channels": 16, "num_layers": depths[0],
            "caption_projection_dim": num_heads * head_dim, "pos_embed_max_size": 32,
            "dual_attention_layers": (0,), "qk_norm": "rms_norm",
        }  # fmt: skip
    else:
        config |= {
            "patch_size": 1, "in_channels": 64, "num_layers": depths[0], "num_single_layers": depths[1],
            "guidance_embeds": True, "axes_dims_rope": (head_dim - 40, 20, 20),
        }  # fmt: skip
    return FAMILIES[family](Architecture(config, _VAE, {"shift": 3.0, "use_dynamic_shifting": False}))
