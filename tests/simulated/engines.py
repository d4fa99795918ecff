"""Trainings on two simulated GPUs whose weights and states are in several places."""

from typing import Any

ENGINES: dict[str, dict[str, Any]] = {
    "DDP, block swap": {
        "method": {"kind": "lora", "rank": 4, "alpha": 6},
        "parallel": {"device": "cuda", "sharding": "none"},
        "levers": {"gradient_checkpointing": 1.0, "block_swap": 2, "optimizer_offload": True},
    },
    "DDP, bf16 weights": {
        "method": {"kind": "full"},
        "parallel": {"device": "cuda", "sharding": "none"},
        "train": {"precision": "bf16", "weight_dtype": "bf16", "ema": {"decay": 0.9}},
        "levers": {
            "gradient_checkpointing": 1.0,
            "optimizer_offload": True,
            "ema_offload": True,
            "activation_offload": True,
        },
        "save": {"asynchronous": True},
    },
    "FSDP2": {
        "method": {"kind": "full"},
        "parallel": {"device": "cuda", "sharding": "full"},
        "train": {"ema": {"decay": 0.9}},
        "levers": {"gradient_checkpointing": 1.0},
        "save": {"asynchronous": True},
    },
}
"""Sections of experiments, by a name that begins with the engine."""
