"""Which packages each extra installs, and whether they are there. Nothing is imported."""

from importlib.util import find_spec

PACKAGES = {
    "train": ("torch", "diffusers", "transformers", "peft", "safetensors", "PIL", "numpy"),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "trackio": ("trackio",),
    "datasets": ("datasets",),
    "plots": ("matplotlib",),
}


def is_installed(extra: str) -> bool:
    return all(find_spec(package) is not None for package in PACKAGES[extra])
