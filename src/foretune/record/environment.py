"""The environment's fingerprint: what a number was measured in. Absent is None, never a guess."""

import importlib.metadata
import os
import platform
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretune import __version__
from foretune.core.values.base import content_hash
from foretune.record.accelerators import first_line, nvidia_driver, nvidia_settings, torch_facts
from foretune.record.machine import (
    container_facts,
    cpu_facts,
    distribution,
    memory_facts,
    numa_facts,
    process_facts,
    volatile_facts,
)
from foretune.record.redaction import redacted

VOLATILE = "volatile"
"""The part of a fingerprint that is not in its hash."""

_PACKAGES = (
    "torch",
    "triton",
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
_BUILT_FOR_CUDA = ("nvidia-cudnn", "nvidia-nccl")
"""Packages whose names end with the CUDA version that they are built for."""
_CUDA_SUFFIXES = ("-cu13", "-cu12")
# By name only: a variable that is not listed here may hold a secret.
_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "MALLOC_CONF",
    "MALLOC_ARENA_MAX",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG",
    "NCCL_DEBUG",
    "TORCH_COMPILE_DISABLE",
    "HF_HUB_OFFLINE",
)


def environment_fingerprint(root: Path = Path("/")) -> dict[str, Any]:
    """Hardware, system, limits, versions, settings, devices, source revision; and, apart, what is volatile.

    Names of machines and serial numbers are left out: two like nodes of a cluster are one environment.
    """
    found = {
        "foretune": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "python_compiler": platform.python_compiler(),
        "system": platform.system(),
        "kernel": platform.release(),
        "distribution": distribution(root),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "machine": platform.machine(),
        "cpu": cpu_name(root),
        "num_logical_cpus": os.cpu_count(),
        "num_usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": _memory_bytes(),
        "processor": cpu_facts(root),
        "numa": numa_facts(root),
        "memory": memory_facts(root),
        "container": container_facts(root),
        "process": process_facts(root),
        "packages": {
            **{name: _version(name) for name in _PACKAGES},
            **{name: _cuda_build(name) for name in _BUILT_FOR_CUDA},
        },
        "variables": {name: os.environ.get(name) for name in _VARIABLES},
        "torch": torch_facts(),
        "nvidia_driver": nvidia_driver(),
        "nvidia_settings": nvidia_settings(),
        "amd_driver": _amd_driver(root),
        "source": _source_revision(),
        VOLATILE: volatile_facts(root),
    }
    # Here, so that its hash is that of what is written.
    return dict(redacted(found))


def environment_hash(environment: Mapping[str, Any]) -> str:
    """The environment's identity. What is volatile is recorded, but no part of it: it differs from itself."""
    return content_hash({name: value for name, value in environment.items() if name != VOLATILE})


def machine_text(environment: Mapping[str, Any]) -> str:
    """The machine of an environment in words: its GPUs, or its processor with the number of usable cores."""
    devices = [one.get("name") for one in (environment.get("torch") or {}).get("devices") or () if one.get("name")]
    if devices:
        counted = Counter(map(str, devices))
        return ", ".join(name if num == 1 else f"{num} x {name}" for name, num in counted.items())
    num = environment.get("num_usable_cpus") or environment.get("num_logical_cpus")
    cores = "" if not num else "1 core of " if num == 1 else f"{num} cores of "
    return f"{cores}{environment.get('cpu') or environment.get('machine') or 'an unknown processor'}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cuda_build(package: str) -> str | None:
    """The version of a package under the name that is installed; with its name where several are."""
    found = {suffix: version for suffix in _CUDA_SUFFIXES if (version := _version(f"{package}{suffix}")) is not None}
    if len(found) > 1:
        return ", ".join(f"{version} ({suffix.removeprefix('-')})" for suffix, version in found.items())
    return next(iter(found.values()), None)


def cpu_name(root: Path = Path("/")) -> str | None:
    """The processor's name as the system reports it."""
    info = root / "proc/cpuinfo"
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def _memory_bytes() -> int | None:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _source_revision() -> dict[str, Any] | None:
    """Revision of the directory the run is started from, if it is a git checkout."""
    commit = first_line("git", "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": first_line("git", "status", "--porcelain") is not None}


def _amd_driver(root: Path) -> str | None:
    version = root / "sys/module/amdgpu/version"
    return version.read_text(encoding="ascii").strip() if version.is_file() else None
