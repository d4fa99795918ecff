"""The libraries underneath speak only when something is wrong: their bars and hints would tear ours apart."""

import logging
import os
import warnings


def hush() -> None:
    """Turns off the hints of libraries that are not imported yet; errors still come through."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    # torch's profiler notes its starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # Where they are installed, diffusers and peft import them, and they tell of kernels that nobody asked for.
    for name in ("torchao", "bitsandbytes", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)


def quieten() -> None:
    """Turns off the libraries' progress bars too. Imports them, so call it late."""
    hush()
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module=r"(diffusers|transformers|peft|torch|huggingface_hub)\b")
