"""The libraries underneath speak only when something is wrong: their bars and hints would tear ours apart."""

import logging
import os


def hush() -> None:
    """Turns off the hints of libraries that are not imported yet; errors still come through."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    # torch's profiler notes its starts and stops; it reads these once, when torch is imported.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Where they are installed, diffusers and peft import them, and they tell of kernels that nobody asked for.
    for name in ("torchao", "bitsandbytes", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
