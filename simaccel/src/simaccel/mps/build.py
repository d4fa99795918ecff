"""Compiles the simulated MPS device with g++ against the installed torch; once for each state of sources and torch."""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from simaccel.build import cache_directory

SOURCES = Path(__file__).parent / "csrc"


def build() -> Path:
    """Returns the compiled library; compiles it where the cache has none for these sources and this torch."""
    flags = _flags()
    library = cache_directory() / f"simaccel_mps_{_key(flags)}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    sources = sorted(SOURCES.glob("*.cpp"))
    # In the folder of the library, so that the finished file can be moved at once.
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="building-") as scratch:
        objects = [Path(scratch) / f"{source.stem}.o" for source in sources]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            commands = [
                ["g++", *flags, "-c", source, "-o", target] for source, target in zip(sources, objects, strict=True)
            ]
            list(pool.map(_run, commands))
        libraries = _torch_directory() / "lib"
        linked = Path(scratch) / library.name
        torch = ["-ltorch_cpu", "-ltorch", "-ltorch_python", "-lc10"]
        _run(["g++", "-shared", *objects, f"-L{libraries}", *torch, f"-Wl,-rpath,{libraries}", "-o", linked])
        linked.rename(library)
    print(f"simaccel: compiled {library.name} in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return library


def _run(command: list[str | Path]) -> None:
    subprocess.run(list(map(str, command)), check=True)


def _torch_directory() -> Path:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def _flags() -> list[str]:
    include = _torch_directory() / "include"
    return ["-std=c++20", "-O0", "-fPIC", "-w", f"-I{include}", f"-I{include}/torch/csrc/api/include"]


def _key(flags: list[str]) -> str:
    """Changes with everything that the library depends on."""
    compiler = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(f"{version('torch')} {compiler} {flags}".encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


if __name__ == "__main__":
    print(build())
