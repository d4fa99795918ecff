"""The libraries underneath speak only when something is wrong: their bars and hints would tear ours apart."""

import warnings


def quieten() -> None:
    """Turns off the progress bars and warnings of the libraries. Imports them, so call it late."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module=r"(diffusers|transformers|peft|torch|huggingface_hub)\b")
