"""Versions that do not go together, each with the command that fixes it."""

import importlib.metadata
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.checkup.finding import CheckResult
from foretune.record.accelerators import nvidia_names
from foretune.record.unused_cards import unused_cards

# Whose demands count. All of them are named in foretune's own, or are installed beside them and break them.
_PACKAGES = (
    *("accelerate", "bitsandbytes", "datasets", "diffusers", "peft", "safetensors", "tokenizers", "torchao"),
    *("torchaudio", "torchvision", "transformers", "triton", "xformers", "huggingface-hub", "pytorch-optimizer"),
)
_NVIDIA_DRIVER = Path("proc/driver/nvidia/version")


@dataclass(frozen=True)
class Mismatch:
    """A demand that is not met."""

    package: str
    text: str
    remedy: str


def examine_versions() -> Iterator[CheckResult]:
    """One finding that all is well, or one for each mismatch."""
    found = [*unmet_demands(), *unfit_build()]
    for mismatch in found:
        yield CheckResult(
            "host", "versions", f"versions: {mismatch.package}", False, True, 0.0, mismatch.text, mismatch.remedy
        )
    if not found:
        num = sum(1 for _ in _demands(_installed))
        yield CheckResult(
            "host", "versions", "versions", True, True, 0.0, f"{num} requirements of installed packages are met"
        )


def _installed(name: str) -> Any:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def unmet_demands(installed: Callable[[str], Any] = _installed) -> Iterator[Mismatch]:
    """What installed packages, and foretune, demand of installed packages."""
    for package, version, demand, found in _demands(installed):
        if not demand.specifier.contains(found, prereleases=True):
            needs = f"{package} {version} needs {demand.name}{demand.specifier}, installed is {found}"
            yield Mismatch(demand.name, needs, f"pip install '{demand.name}{demand.specifier}'")


def _demands(installed: Callable[[str], Any]) -> Iterator[tuple[str, str, Any, str]]:
    """(who demands, its version, the demand, the version that is there); what is not installed is not looked at."""
    from packaging.requirements import Requirement

    for package in ("foretune", *_PACKAGES):
        distribution = installed(package)
        for text in (distribution.requires or ()) if distribution is not None else ():
            demand = Requirement(text)
            # Of its own extras foretune demands all that are installed; others' extras are none of ours.
            extras = _extras_in(text) if package == "foretune" else ("",)
            if demand.marker is not None and not any(demand.marker.evaluate({"extra": extra}) for extra in extras):
                continue
            other = installed(demand.name)
            if other is not None:
                yield package, distribution.version, demand, other.version


def _extras_in(text: str) -> Iterable[str]:
    return re.findall(r"extra == ['\"]([\w-]+)['\"]", text) or ("",)


def unfit_build(torch: Any = None, root: Path = Path("/")) -> Iterator[Mismatch]:
    """A torch that was built for other hardware than there is."""
    if torch is None:
        import torch
    if unused := unused_cards(torch, root):
        yield Mismatch("torch", unused.text, unused.remedy)
    elif not torch.cuda.is_available() and (root / _NVIDIA_DRIVER).is_file() and not nvidia_names():
        text = "an NVIDIA driver is loaded, but nvidia-smi lists no card"
        yield Mismatch("torch", text, "nvidia-smi  # a container must be started with access to GPUs")
