"""Graphics cards that a driver reports and torch does not use, with the reason and the command that changes it."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.record.accelerators import accelerators_here, nvidia_cuda_version, nvidia_names

_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_SELECTOR = "https://pytorch.org/get-started/locally"


@dataclass(frozen=True)
class UnusedCards:
    """Cards of this machine that the installed torch does not use."""

    names: tuple[str, ...]
    why: str
    remedy: str
    """A command, with a comment."""

    @property
    def text(self) -> str:
        more = f" and {len(self.names) - 1} more are" if len(self.names) > 1 else " is"
        return f"{self.names[0]}{more} not used, because {self.why}"


def unused_cards(torch: Any, root: Path = Path("/")) -> UnusedCards | None:
    """Returns None if torch sees a card, if there is none, or if the environment hides all of them on purpose.

    torch is an argument because this layer does not import it.
    """
    if torch.cuda.is_available() or any(os.environ.get(name) in ("", "-1") for name in _HIDING):
        return None
    if nvidia := nvidia_names():
        return UnusedCards(nvidia, *_why_not_nvidia(torch))
    amd = tuple(card.name for card in accelerators_here(root) if card.kind == "rocm")
    return UnusedCards(amd, *_why_not_amd(torch)) if amd else None


def install_command(torch: Any) -> str:
    """Returns the command that installs the same torch for the GPU of this machine.

    pip takes the build of the default package index, which on Windows is the one for CPUs; uv asks the driver.
    """
    version = torch.__version__.partition("+")[0]
    command = f"uv pip install --reinstall-package torch --torch-backend=auto torch=={version}"
    return f"{command}  # after: pip install uv; or choose a build at {_SELECTOR}"


def _built_for(torch: Any) -> str:
    if torch.version.cuda is not None:
        return f"torch {torch.__version__} is built for CUDA {torch.version.cuda}"
    if torch.version.hip is not None:
        return f"torch {torch.__version__} is built for ROCm {torch.version.hip}, which is for AMD"
    return f"torch {torch.__version__} is built for CPUs only"


def _why_not_nvidia(torch: Any) -> tuple[str, str]:
    built, driver = _built_for(torch), nvidia_cuda_version()
    if torch.version.cuda is None:
        return built, install_command(torch)
    # Within a major version, an older driver runs a newer build.
    if driver is not None and _major(driver) < _major(torch.version.cuda):
        why = f"{built} and the NVIDIA driver supports CUDA {driver} at most"
        return why, f"{install_command(torch)}; or update the driver"
    return _hidden_or_broken(torch, _HIDING[0], "nvidia-smi")


def _why_not_amd(torch: Any) -> tuple[str, str]:
    if torch.version.hip is None:
        return _built_for(torch), install_command(torch)
    variable = next((name for name in reversed(_HIDING) if name in os.environ), _HIDING[1])
    return _hidden_or_broken(torch, variable, "rocminfo")


def _hidden_or_broken(torch: Any, variable: str, program: str) -> tuple[str, str]:
    if variable in os.environ:
        return f"{variable}={os.environ[variable]} names no card that is there", f"unset {variable}"
    why = f"{_built_for(torch)} and cannot open it"
    return why, f"{program}; python -c 'import torch; torch.cuda.init()'  # prints the driver's error"


def _major(version: str) -> int:
    found = re.match(r"\d+", version)
    assert found is not None, "versions of CUDA begin with a number"
    return int(found.group())
