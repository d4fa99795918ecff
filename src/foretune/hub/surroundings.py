"""What a download finds on this machine: the cache, free space, a token. Works without huggingface_hub."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where huggingface_hub keeps downloads, by the variables that it reads itself."""
    older = environment.get("HUGGINGFACE_HUB_CACHE") or str(_home(environment) / "hub")
    return Path(os.path.expandvars(environment.get("HF_HUB_CACHE") or older)).expanduser()


def free_bytes(folder: Path) -> int:
    """Free space of the disk that a folder is on, or will be on."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def token() -> str | None:
    """The token of the environment. Without one, huggingface_hub looks for a token that `hf auth login` stored."""
    name = token_variable()
    return None if name is None else os.environ[name]


def token_variable() -> str | None:
    """The name of the variable that holds a token."""
    return next((name for name in TOKEN_VARIABLES if os.environ.get(name)), None)


def has_stored_token(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `hf auth login` left a token."""
    stored = environment.get("HF_TOKEN_PATH") or str(_home(environment) / "token")
    return Path(os.path.expandvars(stored)).expanduser().is_file()


def _home(environment: Mapping[str, str]) -> Path:
    default = environment.get("XDG_CACHE_HOME") or str(Path("~") / ".cache")
    return Path(environment.get("HF_HOME") or str(Path(default) / "huggingface"))
