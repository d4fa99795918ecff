"""The files by which Linux describes a machine, made in a folder, so that each fact can be changed."""

from pathlib import Path

FILES = {
    "proc/cpuinfo": (
        "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Xeon 8592\n"
        "stepping\t: 2\nmicrocode\t: 0x21\ncache size\t: 307200 KB\ncpu MHz\t\t: 2100.000\n"
        "flags\t\t: fma avx2 amx_bf16\n\n"
        "processor\t: 1\nmodel name\t: Xeon 8592\n"
    ),
    "proc/meminfo": (
        "MemTotal: 24000000 kB\nMemAvailable: 12000000 kB\nSwapTotal: 8000 kB\nSwapFree: 10 kB\nHugePages_Total: 0\n"
    ),
    "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-1\nMems_allowed_list:\t0\n",
    "proc/self/limits": (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max locked memory         8388608              8388608              bytes     \n"
        "Max address space         unlimited            unlimited            bytes     \n"
    ),
    "proc/self/maps": "7f00-7f01 r-xp 00000000 /usr/lib/libc.so.6\n",
    "proc/loadavg": "0.50 0.40 0.30 1/200 4242\n",
    "proc/uptime": "1000.00 1900.00\n",
    "proc/sys/kernel/numa_balancing": "1\n",
    "proc/sys/vm/swappiness": "60\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 13"\n',
    "sys/devices/system/cpu/smt/active": "1\n",
    "sys/devices/system/cpu/isolated": "\n",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
    "sys/devices/system/cpu/cpufreq/boost": "1\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "intel_pstate\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq": "800000\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "3900000\n",
    "sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference": "balance_performance\n",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
    "sys/devices/system/cpu/cpu0/topology/core_id": "0\n",
    "sys/devices/system/cpu/cpu1/topology/physical_package_id": "0\n",
    "sys/devices/system/cpu/cpu1/topology/core_id": "1\n",
    "sys/devices/system/node/node0/cpulist": "0-1\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/fs/cgroup/cpu.max": "max 100000\n",
    "sys/fs/cgroup/cpu.weight": "100\n",
    "sys/fs/cgroup/memory.max": "max\n",
    "sys/fs/cgroup/memory.swap.max": "max\n",
    "sys/fs/cgroup/cpuset.cpus.effective": "0-1\n",
    "sys/module/amdgpu/version": "6.12.12\n",
}

# Path, what stands there, what it becomes; the same fact on another machine, or differently set on this one.
CHANGES = (
    ("proc/cpuinfo", "GenuineIntel", "AuthenticAMD"),
    ("proc/cpuinfo", "model name\t: Xeon 8592", "model name\t: Xeon 8480"),
    ("proc/cpuinfo", "cpu family\t: 6", "cpu family\t: 25"),
    ("proc/cpuinfo", "207", "143"),
    ("proc/cpuinfo", "stepping\t: 2", "stepping\t: 8"),
    ("proc/cpuinfo", "0x21", "0x2b"),
    ("proc/cpuinfo", "307200", "107520"),
    ("proc/cpuinfo", "amx_bf16", "avx512f"),
    ("proc/cpuinfo", "fma avx2", "fma avx2 hypervisor"),
    ("proc/meminfo", "8000 kB", "0 kB"),
    ("proc/meminfo", "HugePages_Total: 0", "HugePages_Total: 512"),
    ("proc/self/status", "Cpus_allowed_list:\t0-1", "Cpus_allowed_list:\t0"),
    ("proc/self/status", "Mems_allowed_list:\t0", "Mems_allowed_list:\t1"),
    ("proc/self/limits", "Max locked memory         8388608  ", "Max locked memory         unlimited"),
    ("proc/self/limits", "Max address space         unlimited", "Max address space         900000000"),
    ("proc/self/maps", "libc.so.6", "libjemalloc.so.2"),
    ("proc/sys/kernel/numa_balancing", "1", "0"),
    ("proc/sys/vm/swappiness", "60", "1"),
    ("proc/sys/vm/overcommit_memory", "0", "2"),
    ("etc/os-release", "13", "12"),
    ("sys/devices/system/cpu/smt/active", "1", "0"),
    ("sys/devices/system/cpu/isolated", "\n", "1\n"),
    ("sys/devices/system/cpu/intel_pstate/no_turbo", "0", "1"),
    ("sys/devices/system/cpu/cpufreq/boost", "1", "0"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave", "performance"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate", "acpi-cpufreq"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq", "800000", "1200000"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "3900000", "2100000"),
    ("sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference", "balance_performance", "power"),
    ("sys/devices/system/cpu/cpu1/topology/physical_package_id", "0", "1"),
    ("sys/devices/system/cpu/cpu1/topology/core_id", "1", "0"),
    ("sys/devices/system/node/node0/cpulist", "0-1", "0"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise]", "[always] madvise"),
    ("sys/fs/cgroup/cpu.max", "max 100000", "150000 100000"),
    ("sys/fs/cgroup/cpu.weight", "100", "10"),
    ("sys/fs/cgroup/memory.max", "max", "8589934592"),
    ("sys/fs/cgroup/memory.swap.max", "max", "0"),
    ("sys/fs/cgroup/cpuset.cpus.effective", "0-1", "1"),
    ("sys/module/amdgpu/version", "6.12.12", "6.14.0"),
)
VOLATILE_CHANGES = (
    ("proc/loadavg", "0.50", "9.50"),
    ("proc/uptime", "1000.00", "2000.00"),
    ("proc/meminfo", "12000000", "3000000"),
    ("proc/meminfo", "SwapFree: 10 kB", "SwapFree: 5 kB"),
    ("proc/cpuinfo", "2100.000", "800.000"),
)


def write_machine(root: Path) -> Path:
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
