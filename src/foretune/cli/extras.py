"""What an installation has; what it lacks is named with the command that adds it."""

from importlib.util import find_spec

from foretune.core.errors import MissingExtra

_NEEDED = {
    "train": ("torch", "diffusers", "transformers", "peft", "safetensors", "PIL", "numpy"),
    "tensorboard": ("tensorboard",),
    "datasets": ("datasets",),
    "plots": ("matplotlib",),
}


def require(extra: str, feature: str) -> None:
    """Raises the error that names the install command, before a long import fails half-way."""
    if any(find_spec(package) is None for package in _NEEDED[extra]):
        raise MissingExtra(feature, extra)
