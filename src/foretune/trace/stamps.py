"""What a trace was made from, as a few digits."""

import hashlib
from importlib.resources import files
from pathlib import Path

from foretune import catalog
from foretune.core.values.base import content_hash

# What a step is made of: when one of these changes, the traces may be stale.
_STEP_SOURCES = ("step", "models", "trace")


def model_hash(name: str) -> str:
    """Equal while the catalogue's configuration of a component, and of a denoiser's autoencoder, is equal."""
    row = catalog.component(name)
    vae = catalog.component(row.system.vae).config if row.system and row.system.vae else None
    return content_hash({"own": dict(row.config), "vae": dict(vae) if vae is not None else None})


def sources_hash() -> str:
    """Equal while the code that makes a step and records it is equal."""
    digest = hashlib.blake2b(digest_size=8)
    root = Path(str(files("foretune")))
    for folder in _STEP_SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
