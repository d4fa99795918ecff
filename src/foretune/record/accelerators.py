"""What torch and the drivers tell of accelerators, and how torch was built and set."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from foretune.core.units import GIB, MIB
from foretune.core.values.base import content_hash

_LEAST_CARD_BYTES = 2 * GIB

# What the driver can be set to, or limits a device to; all of it changes speed.
_NVIDIA_FIELDS = (
    "vbios_version",
    "power.limit",
    "clocks.max.sm",
    "clocks.max.memory",
    "clocks.applications.graphics",
    "persistence_mode",
    "compute_mode",
    "ecc.mode.current",
    "mig.mode.current",
    "pcie.link.gen.max",
    "pcie.link.width.max",
)


def torch_facts() -> dict[str, Any] | None:
    """Read only where torch is already imported: this layer does not bring it in."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    config = _asked(torch, "__config__.show")
    nccl = _asked(torch, "cuda.nccl.version") if torch.version.cuda else None
    flags = _asked(torch, "__config__._cxx_flags")
    return {
        "version": torch.__version__,
        "revision": _asked(torch, "version.git_version"),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": _asked(torch, "backends.cudnn.version"),
        "nccl": None if nccl is None else ".".join(map(str, nccl)),
        "mps": bool(torch.backends.mps.is_available()),
        "compiler_flags": None if flags is None else flags.strip(),
        # Long; equal hashes mean that both were built with the same libraries.
        "build": None if config is None else content_hash(config),
        "cpu_capability": _asked(torch, "backends.cpu.get_cpu_capability"),
        "mkldnn": _asked(torch, "backends.mkldnn.enabled"),
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": _asked(torch, "get_num_interop_threads"),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": _asked(torch, "backends.cudnn.benchmark"),
        "cudnn_fp32_precision": _asked(torch, "backends.cudnn.conv.fp32_precision"),
        "allocator": _asked(torch, "cuda.get_allocator_backend") if torch.version.cuda else None,
        "devices": _devices(torch),
    }


@dataclass(frozen=True)
class Accelerator:
    """A device of this machine as its driver reports it."""

    name: str
    kind: Literal["cuda", "rocm", "mps"]
    total_bytes: int


def accelerators_here(root: Path = Path("/")) -> list[Accelerator]:
    """The devices of this machine by their drivers, without torch: nvidia-smi, the amdgpu module, Apple silicon."""
    return [*_nvidia_cards(), *_amd_cards(root), *_apple_gpu()]


def _nvidia_cards() -> Iterator[Accelerator]:
    for line in _lines("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"):
        name, _, total = line.rpartition(",")
        # A card whose memory is shared with the host has none of its own to report ("[N/A]").
        if total.strip().isdigit():
            yield Accelerator(name.strip(), "cuda", int(total) * MIB)


def _amd_cards(root: Path) -> Iterator[Accelerator]:
    """Only where ROCm's kernel interface is there; graphics inside a processor have less memory than a model takes."""
    if not (root / "sys/class/kfd").exists():
        return
    for path in sorted((root / "sys/class/drm").glob("card[0-9]*/device/mem_info_vram_total")):
        total_bytes = int(path.read_text(encoding="ascii"))
        if total_bytes > _LEAST_CARD_BYTES:
            title = path.with_name("product_name")
            # Cards for desktops have no such file, or an empty one.
            name = title.read_text(encoding="utf-8").strip() if title.is_file() else ""
            yield Accelerator(name or "AMD GPU", "rocm", total_bytes)


def _apple_gpu() -> Iterator[Accelerator]:
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        name = first_line("sysctl", "-n", "machdep.cpu.brand_string") or "Apple silicon"
        yield Accelerator(name, "mps", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def nvidia_names() -> tuple[str, ...]:
    """The names of NVIDIA's cards, also of those that share the host's memory."""
    lines = _lines("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return tuple(line.strip() for line in lines if line.strip() not in ("", "No devices were found"))


def nvidia_cuda_version() -> str | None:
    """The newest CUDA that the NVIDIA driver supports; None where it does not say."""
    # Drivers since 590 print "CUDA UMD Version".
    found = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)", "\n".join(_lines("nvidia-smi")))
    return found.group(1) if found else None


def nvidia_pages_to_host() -> bool:
    """Whether NVIDIA's driver moves memory to the host when a card is full, as it does on Windows, and in WSL, which
    uses the driver of Windows (https://github.com/microsoft/WSL/issues/11050). On Windows, cards for computing can be
    set to another driver model (TCC), under which an allocation fails as on Linux.
    """
    if platform.system() != "Windows":
        return "microsoft" in platform.release().lower()
    return first_line("nvidia-smi", "--query-gpu=driver_model.current", "--format=csv,noheader") != "TCC"


def nvidia_driver() -> str | None:
    return first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def nvidia_settings() -> list[dict[str, str]] | None:
    """How each card is set and limited, as its driver tells."""
    lines = _lines("nvidia-smi", f"--query-gpu={','.join(_NVIDIA_FIELDS)}", "--format=csv,noheader")
    rows = [[value.strip() for value in line.split(",")] for line in lines]
    if not rows or any(len(row) != len(_NVIDIA_FIELDS) for row in rows):
        return None
    return [dict(zip(_NVIDIA_FIELDS, row, strict=True)) for row in rows]


def first_line(*command: str) -> str | None:
    """The first line that a program prints; None where it is absent, fails or prints nothing."""
    lines = _lines(*command)
    return lines[0] if lines else None


def _lines(*command: str) -> list[str]:
    program = shutil.which(command[0])
    if program is None:
        return []
    try:
        answer = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.strip().splitlines() if answer.returncode == 0 else []


def _devices(torch: Any) -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [
        {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "num_processors": properties.multi_processor_count,
        }
        for properties in found
    ]


def _asked(torch: Any, path: str) -> Any:
    """What stands at a place of torch, called if it is a function; None where this torch has no such place."""
    try:
        found = attrgetter(path)(torch)
        return found() if callable(found) else found
    except (AttributeError, RuntimeError, AssertionError):
        return None
