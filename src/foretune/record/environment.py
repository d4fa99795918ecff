"""The environment's fingerprint: what a number was measured in. Absent is None, never a guess."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from foretune import __version__
from foretune.core.values.base import content_hash

_PACKAGES = (
    "torch",
    "diffusers",
    "transformers",
    "peft",
    "accelerate",
    "bitsandbytes",
    "pytorch-optimizer",
    "torchao",
    "safetensors",
    "numpy",
    "pillow",
    "huggingface-hub",
    "tokenizers",
    "pydantic",
)
# By name only: a variable that is not listed here may hold a secret.
_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG",
    "NCCL_DEBUG",
    "TORCH_COMPILE_DISABLE",
    "HF_HUB_OFFLINE",
)


def environment_fingerprint() -> dict[str, Any]:
    """Hardware, system, versions, devices, source revision."""
    return {
        "foretune": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "num_logical_cpus": os.cpu_count(),
        "num_usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": _memory_bytes(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "variables": {name: os.environ.get(name) for name in _VARIABLES},
        "torch": _torch_facts(),
        "nvidia_driver": _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "source": _source_revision(),
    }


def environment_hash(environment: dict[str, Any]) -> str:
    return content_hash(environment)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str | None:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def _memory_bytes() -> int | None:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _torch_facts() -> dict[str, Any] | None:
    """Read only where torch is already imported: this layer does not bring it in."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    devices = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            devices.append(
                {
                    "name": properties.name,
                    "memory_bytes": properties.total_memory,
                    "capability": f"{properties.major}.{properties.minor}",
                    "num_processors": properties.multi_processor_count,
                }
            )
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "mps": bool(torch.backends.mps.is_available()),
        "num_threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "devices": devices,
    }


def _source_revision() -> dict[str, Any] | None:
    """Revision of the directory the run is started from, if it is a git checkout."""
    commit = _first_line("git", "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": _first_line("git", "status", "--porcelain") is not None}


def _first_line(*command: str) -> str | None:
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        answer = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = answer.stdout.strip().splitlines()
    return lines[0] if answer.returncode == 0 and lines else None
