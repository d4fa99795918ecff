"""Versions that do not go together, each with the command that fixes it."""

import importlib.metadata
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.checkup.finding import CheckResult

# Whose demands count. All of them are named in foretune's own, or are installed beside them and break them.
_PACKAGES = (
    *("accelerate", "bitsandbytes", "datasets", "diffusers", "peft", "safetensors", "tokenizers", "torchao"),
    *("torchaudio", "torchvision", "transformers", "triton", "xformers", "huggingface-hub", "pytorch-optimizer"),
)
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


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


def unfit_build(torch: Any = None, has_driver: bool | None = None) -> Iterator[Mismatch]:
    """A torch that was built for other hardware than there is."""
    if torch is None:
        import torch
    if has_driver is None:
        has_driver = _NVIDIA_DRIVER.is_file() or shutil.which("nvidia-smi") is not None
    if not has_driver or torch.cuda.is_available():
        return
    if torch.version.cuda is None and torch.version.hip is None:
        text = f"there is an NVIDIA driver, but torch {torch.__version__} was built for the CPU alone"
        remedy = f"pip install --force-reinstall 'torch=={torch.__version__.partition('+')[0]}'"
        yield Mismatch("torch", text, remedy)
    elif torch.version.cuda is not None:
        built = f"torch {torch.__version__} was built for CUDA {torch.version.cuda}"
        text = f"{built} and finds no device: the driver may be older"
        yield Mismatch("torch", text, "nvidia-smi  # its CUDA version must not be below torch's; else a newer driver")
