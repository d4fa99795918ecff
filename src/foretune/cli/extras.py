"""What an installation has; what it lacks is named with the command that adds it."""

from importlib.util import find_spec

from foretune.core.errors import MissingExtra

_NEEDED = {
    "train": ("torch", "diffusers", "transformers", "peft", "safetensors", "PIL", "numpy"),
    "tensorboard": ("tensorboard",),
    "datasets": ("datasets",),
    "plots": ("matplotlib",),
}


def require(extras: str, feature: str) -> None:
    """Raises the error that names the install command, before a long import fails half-way.

    Several extras have commas between them; all that lack are in one command.
    """
    lacking = [extra for extra in extras.split(",") if any(find_spec(name) is None for name in _NEEDED[extra])]
    if lacking:
        raise MissingExtra(feature, ",".join(lacking))
