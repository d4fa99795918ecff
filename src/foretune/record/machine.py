"""What Linux tells of the machine and of the limits that a process has there. Elsewhere most of it is absent."""

import os
from pathlib import Path
from typing import Any

from foretune.core.errors import UserError
from foretune.core.units import KIB

# Instructions that products and convolutions are chosen by; the full list of a processor is long and says no more.
_FLAGS = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "sve2", "bf16", "i8mm"),
)
_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
_UNLIMITED = ("max", "-1", "9223372036854771712")


def cpu_facts(root: Path) -> dict[str, Any]:
    """The processor: what it is, how fast it may run, and who decides that."""
    info = _cpuinfo(root)
    flags = set(info.get("flags", info.get("Features", "")).split())
    clocks = root / "sys/devices/system/cpu/cpu0/cpufreq"
    return {
        "vendor": info.get("vendor_id") or info.get("CPU implementer"),
        "family": info.get("cpu family"),
        "model": info.get("model"),
        "stepping": info.get("stepping"),
        "microcode": info.get("microcode"),
        "cache": info.get("cache size"),
        "flags": [flag for flag in _FLAGS if flag in flags],
        "is_virtual": "hypervisor" in flags,
        "num_sockets": _num_distinct(root, "physical_package_id"),
        "num_cores": _num_distinct(root, "core_id"),
        "smt": _text(root / "sys/devices/system/cpu/smt/active"),
        "isolated": _text(root / "sys/devices/system/cpu/isolated") or None,
        "governor": _text(clocks / "scaling_governor"),
        "clock_driver": _text(clocks / "scaling_driver"),
        "min_clock_khz": _number(clocks / "scaling_min_freq"),
        "max_clock_khz": _number(clocks / "scaling_max_freq"),
        "energy_preference": _text(clocks / "energy_performance_preference"),
        "turbo_off": _text(root / "sys/devices/system/cpu/intel_pstate/no_turbo"),
        "boost": _text(root / "sys/devices/system/cpu/cpufreq/boost"),
    }


def numa_facts(root: Path) -> dict[str, Any]:
    """Where memory is near, and on which processors and memory this process may be."""
    nodes = sorted((root / "sys/devices/system/node").glob("node[0-9]*"))
    status = _fields(root / "proc/self/status", ":")
    return {
        "num_nodes": len(nodes) or None,
        "cpus_of_nodes": [_text(node / "cpulist") for node in nodes],
        "allowed_cpus": status.get("Cpus_allowed_list"),
        "allowed_nodes": status.get("Mems_allowed_list"),
        "balancing": _text(root / "proc/sys/kernel/numa_balancing"),
    }


def memory_facts(root: Path) -> dict[str, Any]:
    meminfo = _fields(root / "proc/meminfo", ":")
    return {
        "swap": meminfo.get("SwapTotal"),
        "huge_pages": meminfo.get("HugePages_Total"),
        "transparent_huge_pages": _chosen(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        "swappiness": _number(root / "proc/sys/vm/swappiness"),
        "overcommit": _number(root / "proc/sys/vm/overcommit_memory"),
    }


def host_memory_bytes(root: Path = Path("/")) -> tuple[int, int]:
    """Total memory of this machine and what is left of it for a new process, both within a container's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else _windows_memory()[0]
    meminfo = _fields(root / "proc/meminfo", ":")
    if "MemAvailable" in meminfo:
        left = int(meminfo["MemAvailable"].split()[0]) * KIB
    else:
        left = total if hasattr(os, "sysconf") else _windows_memory()[1]
    group = root / "sys/fs/cgroup"
    limit = _limit(group / "memory.max", group / "memory/memory.limit_in_bytes")
    if limit is not None:
        used = _number(group / "memory.current") or _number(group / "memory/memory.usage_in_bytes") or 0
        total, left = min(total, limit), min(left, max(0, limit - used))
    return total, left


def _windows_memory() -> tuple[int, int]:
    try:
        import psutil
    except ImportError as error:
        raise UserError("This system's memory cannot be read without psutil. Run: pip install psutil") from error
    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def container_facts(root: Path) -> dict[str, Any]:
    """Limits that a container or a batch system sets: an eighth of a processor looks like a slow one."""
    group = root / "sys/fs/cgroup"
    quota = _text(group / "cpu.max")
    if quota is None:
        old = _number(group / "cpu/cpu.cfs_quota_us")
        quota = None if old is None else f"{'max' if old < 0 else old} {_text(group / 'cpu/cpu.cfs_period_us')}"
    return {
        "kind": _container(root),
        "cpu_quota": quota,
        "cpu_weight": _number(group / "cpu.weight"),
        "memory_limit_bytes": _limit(group / "memory.max", group / "memory/memory.limit_in_bytes"),
        "swap_limit_bytes": _limit(group / "memory.swap.max"),
        "cpus": _text(group / "cpuset.cpus.effective"),
    }


def process_facts(root: Path) -> dict[str, Any]:
    """What decides how this process is served: its priority, limits and allocator."""
    limits = _limits(root / "proc/self/limits")
    return {
        "nice": os.nice(0) if hasattr(os, "nice") else None,
        "scheduler": os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else None,
        "locked_memory_limit": limits.get("Max locked memory"),
        "address_space_limit": limits.get("Max address space"),
        "allocator": _allocator(root),
    }


def volatile_facts(root: Path) -> dict[str, Any]:
    """What changes from one moment to the next. Worth knowing, but no part of the environment's identity."""
    meminfo = _fields(root / "proc/meminfo", ":")
    info = _cpuinfo(root)
    return {
        "load": _text(root / "proc/loadavg"),
        "memory_available": meminfo.get("MemAvailable"),
        "swap_free": meminfo.get("SwapFree"),
        "clock_mhz": info.get("cpu MHz"),
        "uptime_s": (_text(root / "proc/uptime") or "").partition(" ")[0] or None,
    }


def distribution(root: Path) -> str | None:
    name = _fields(root / "etc/os-release", "=").get("PRETTY_NAME")
    return name.strip('"') if name else None


def _cpuinfo(root: Path) -> dict[str, str]:
    """The fields of the first processor."""
    text = _text(root / "proc/cpuinfo") or ""
    lines = text.partition("\n\n")[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _num_distinct(root: Path, field: str) -> int | None:
    """Each socket numbers its cores from 0, so both numbers name one."""
    found = {
        (_text(topology / "physical_package_id"), _text(topology / field))
        for topology in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology")
    }
    return len(found) or None


def _container(root: Path) -> str | None:
    for marker, kind in ((".dockerenv", "docker"), ("run/.containerenv", "podman"), ("singularity", "apptainer")):
        if (root / marker).exists():
            return kind
    return "kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else None


def _allocator(root: Path) -> str:
    """The one that took the place of the C library's, if any did."""
    maps = _text(root / "proc/self/maps") or ""
    return next((name for name in _ALLOCATORS if f"lib{name}" in maps), "system")


def _limit(*paths: Path) -> int | None:
    text = next((found for found in map(_text, paths) if found is not None), None)
    return None if text is None or text in _UNLIMITED else int(text)


def _limits(path: Path) -> dict[str, str]:
    lines = (_text(path) or "").splitlines()[1:]
    return {line[:26].strip(): line[26:47].strip() for line in lines}


def _fields(path: Path, separator: str) -> dict[str, str]:
    lines = (_text(path) or "").splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(separator) for line in lines)}


def _chosen(path: Path) -> str | None:
    """The word in brackets: "always [madvise] never"."""
    text = _text(path)
    return None if text is None else text.partition("[")[2].partition("]")[0] or text


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.lstrip("-").isdigit() else None
