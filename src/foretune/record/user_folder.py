"""Where Foretune keeps what is of one user on one machine: recorded steps, profiles of devices."""

import os
from pathlib import Path


def user_folder() -> Path:
    """`$XDG_CACHE_HOME/foretune`, by default `~/.cache/foretune`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foretune"
