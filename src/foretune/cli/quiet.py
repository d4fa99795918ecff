"""The libraries underneath speak only when something is wrong: their bars and hints would tear ours apart."""

import os
import warnings


def hush() -> None:
    """Turns off the hints of libraries that are not imported yet; errors still come through."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")


def quieten() -> None:
    """Turns off the libraries' progress bars too. Imports them, so call it late."""
    hush()
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module=r"(diffusers|transformers|peft|torch|huggingface_hub)\b")
