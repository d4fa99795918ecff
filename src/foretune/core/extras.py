"""Which packages each extra installs, and whether they are there. Nothing is imported."""

from importlib.util import find_spec

from foretune.core.errors import MissingExtra
from foretune.core.trackers import TRACKER_SPECS

PACKAGES: dict[str, tuple[str, ...]] = {
    "train": ("torch", "diffusers", "transformers", "peft", "safetensors", "PIL", "numpy"),
    "hub": ("huggingface_hub",),
    **{spec.name: spec.packages for spec in TRACKER_SPECS.values() if spec.packages},
    "datasets": ("datasets",),
    "stream": ("fsspec", "aiohttp", "s3fs"),
    "plots": ("matplotlib",),
    "sweep": ("optuna",),
    "slurm": ("submitit",),
    "ray": ("ray",),
}


def is_installed(extra: str) -> bool:
    return all(find_spec(package) is not None for package in PACKAGES[extra])


def require(extras: str, feature: str) -> None:
    """Raises the error that names the install command, before a long import fails half-way.

    Several extras are separated by commas; one command installs all that are missing.
    """
    lacking = [extra for extra in extras.split(",") if not is_installed(extra)]
    if lacking:
        raise MissingExtra(feature, ",".join(lacking))
