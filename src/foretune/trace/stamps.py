"""Hashes of what a trace is made from."""

import hashlib
from importlib.resources import files
from pathlib import Path

from foretune import catalog
from foretune.core.values.base import content_hash

# The code of a step: if one of these folders changes, traces may be stale.
_STEP_SOURCES = ("step", "models", "trace", "accelerator")


def model_hash(name: str) -> str:
    """Returns a hash of the catalogue's configuration of a component and, for a denoiser, of its autoencoder."""
    row = catalog.component(name)
    vae = catalog.component(row.system.vae).config if row.system and row.system.vae else None
    return content_hash({"own": dict(row.config), "vae": dict(vae) if vae is not None else None})


def sources_hash() -> str:
    """Returns a hash of the code that builds and records a step."""
    digest = hashlib.blake2b(digest_size=8)
    root = Path(str(files("foretune")))
    for folder in _STEP_SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
