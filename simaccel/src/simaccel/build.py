"""Compiles the simulated device with g++ against the installed torch; once for each state of the sources and torch."""

import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
_NUM_UNITS = 2


def cache_directory() -> Path:
    """The folder of compiled modules: SIMACCEL_CACHE, or one in the user's cache."""
    if named := os.environ.get("SIMACCEL_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simaccel"


def build() -> Path:
    """Returns the compiled module; compiles it where the cache has none for these sources and this torch."""
    flags = _flags()
    module = cache_directory() / f"simaccel_{_key(flags)}.so"
    if module.exists():
        return module
    module.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    # In the folder of the module, so that the finished file can be moved at once.
    with tempfile.TemporaryDirectory(dir=module.parent, prefix="building-") as scratch:
        _compile(Path(scratch), module, flags)
    print(f"simaccel: compiled {module.name} in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return module


def _compile(scratch: Path, module: Path, flags: list[str]) -> None:
    # g++ uses one core for each unit. Units are few: each compiles torch's headers, which take longer than our code.
    units = [scratch / f"unit{number}.cpp" for number in range(_NUM_UNITS)]
    for unit, sources in zip(units, _balanced(sorted(SOURCES.rglob("*.cpp"))), strict=True):
        unit.write_text("".join(f'#include "{source}"\n' for source in sources), encoding="utf-8")
    with ThreadPoolExecutor(_NUM_UNITS) as pool:
        list(pool.map(lambda unit: _run(["g++", *flags, "-c", unit, "-o", unit.with_suffix(".o")]), units))
    objects = [unit.with_suffix(".o") for unit in units]
    libraries = _torch_directory() / "lib"
    linked = scratch / module.name
    torch = ["-ltorch_cpu", "-ltorch", "-ltorch_python", "-lc10"]
    _run(["g++", "-shared", *objects, f"-L{libraries}", *torch, f"-Wl,-rpath,{libraries}", "-o", linked])
    linked.rename(module)


def _balanced(sources: list[Path]) -> list[list[Path]]:
    """Divides files among units so that each has about as much to compile."""
    units: list[list[Path]] = [[] for _ in range(_NUM_UNITS)]
    for source in sorted(sources, key=lambda path: -path.stat().st_size):
        min(units, key=lambda unit: sum(path.stat().st_size for path in unit)).append(source)
    return units


def _run(command: list[str | Path]) -> None:
    subprocess.run(list(map(str, command)), check=True)


def _torch_directory() -> Path:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def _flags() -> list[str]:
    include = _torch_directory() / "include"
    return [
        "-std=c++20", os.environ.get("SIMACCEL_OPT", "-O1"), "-fPIC", "-w", "-DTORCH_API_INCLUDE_EXTENSION_H",
        "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO", f"-I{include}", f"-I{include}/torch/csrc/api/include",
        f"-I{sysconfig.get_path('include')}",
    ]  # fmt: skip


def _key(flags: list[str]) -> str:
    """Changes with everything that the compiled module depends on."""
    compiler = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(f"{version('torch')} {sys.version} {compiler} {flags}".encode())
    for path in sorted(path for path in SOURCES.rglob("*") if path.suffix in {".cpp", ".h"}):
        digest.update(path.relative_to(SOURCES).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


if __name__ == "__main__":
    print(build())
