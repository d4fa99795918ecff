"""What a process has that a library must leave alone."""

import gc
import logging
import os
import random
import signal
import warnings
from pathlib import Path
from typing import Any

import torch

_LOGGERS = ("", "torch", "diffusers", "transformers", "huggingface_hub", "torchao", "foretune")


def process_state() -> dict[str, Any]:
    """Equal before and after a call that changes nothing of the process."""
    return {
        "collects garbage": gc.isenabled(),
        "garbage thresholds": gc.get_threshold(),
        "environment": dict(os.environ),
        "working directory": Path.cwd(),
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "warning filters": list(warnings.filters),
        "log levels": {name: logging.getLogger(name).level for name in _LOGGERS},
        "random numbers": random.getstate(),
        "torch's random numbers": torch.get_rng_state().tolist(),
        "torch's threads": torch.get_num_threads(),
        "torch's dtype": torch.get_default_dtype(),
        "tf32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "computes gradients": torch.is_grad_enabled(),
    }


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what is not as it was."""
    return [name for name, value in before.items() if after[name] != value]
