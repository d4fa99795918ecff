"""The libraries underneath speak only when something is wrong: their bars and hints would tear ours apart."""

import os
import warnings


def quieten() -> None:
    """Turns off the libraries' progress bars and hints; errors still come through. Imports them, so call it late."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module=r"(diffusers|transformers|peft|torch|huggingface_hub)\b")
