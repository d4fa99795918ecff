"""What names an adapter that is read: a folder, a file, or a repository of the Hub."""

import re
from dataclasses import dataclass
from pathlib import Path

from foretune.core.errors import Refused, UserError

ADAPTER_FILE = "pytorch_lora_weights.safetensors"
"""Weights in the format of diffusers' pipelines."""
PEFT_FILE = "adapter_model.safetensors"
PEFT_SETTINGS = "adapter_config.json"
_SAFE_SUFFIX = ".safetensors"
_HUB_ID = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?(:(?P<file>[^:]+))?", re.ASCII
)


@dataclass(frozen=True)
class AdapterReference:
    """Where an adapter is: `path`, or a file of `repo`."""

    asked: str
    path: Path | None = None
    """A folder, or a file of safetensors."""
    repo: str | None = None
    revision: str | None = None
    file: str | None = None
    """Path in the repository; None where it was not named."""


def resolve_adapter(asked: str | Path) -> AdapterReference:
    """What is here is a folder or a file; OWNER/REPO, OWNER/REPO@REVISION and OWNER/REPO:FILE are on the Hub.

    Raises for what is neither.
    """
    name = str(asked)
    path = Path(asked).expanduser()
    if path.is_file() and path.suffix != _SAFE_SUFFIX:
        raise Refused(f"{name} is not a safetensors file. Other formats of weights can run code and are not read.")
    if path.exists():
        return AdapterReference(name, path=path)
    # `runs/name` has one slash, too: what begins with a folder that is here is a path.
    hub = None if path.parent != Path() and path.parent.is_dir() else _HUB_ID.fullmatch(name)
    if hub is None:
        raise UserError(
            f"There is no adapter {name}. Name a folder that `foretune export` wrote, a .safetensors file, or a "
            "repository of the Hub: OWNER/REPO"
        )
    return AdapterReference(name, repo=hub["repo"], revision=hub["revision"], file=hub["file"])
