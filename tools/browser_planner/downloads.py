"""Downloads Pyodide from npm and wheels from PyPI, in the versions and with the hashes that are written here."""

import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from foretune.core.errors import UserError

PYODIDE = "314.0.7"
"""The release of the npm package. Its Python is that of the platform tag below."""
PYODIDE_SHA256 = "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"
_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_PYTHON = "3.14"
_PLATFORMS = ("pyemscripten_2026_0_wasm32", "manylinux2014_x86_64")


class NotDownloaded(UserError):
    """A part of the page that could not be downloaded."""


def download_all(folder: Path) -> tuple[Path, list[Path]]:
    """Pyodide's folder and the wheels. What lies in the folder already is checked and not downloaded again."""
    folder.mkdir(parents=True, exist_ok=True)
    return _pyodide(folder), _wheels(folder / "wheels")


def require_node() -> str:
    """The path of Node.js, which compiles the Python files."""
    found = shutil.which("node")
    if found is None or shutil.which("npm") is None:
        raise NotDownloaded("The planner's page is built with Node.js and npm. Run: sudo apt-get install npm")
    return found


def _pyodide(folder: Path) -> Path:
    archive, unpacked = folder / f"pyodide-{PYODIDE}.tgz", folder / f"pyodide-{PYODIDE}"
    if not archive.is_file():
        require_node()
        _run("Pyodide", "npm", "pack", "--silent", "--pack-destination", str(folder), f"pyodide@{PYODIDE}")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != PYODIDE_SHA256:
        raise NotDownloaded(f"{archive} has the SHA-256 {found}, not {PYODIDE_SHA256}. Delete it and try again")
    if not unpacked.is_dir():
        with tarfile.open(archive) as packed:
            packed.extractall(folder / "unpacking", filter="data")
        (folder / "unpacking" / "package").rename(unpacked)
    return unpacked


def _wheels(folder: Path) -> list[Path]:
    # pip checks the hashes, also of files that are here already.
    platforms = [f"--platform={name}" for name in _PLATFORMS]
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes")
    where = (*platforms, f"--python-version={_PYTHON}", "--dest", str(folder), "--requirement", str(_REQUIREMENTS))
    _run("The wheels of the planner's page", *pip, *where)
    return sorted(folder.glob("*.whl"))


def _run(what: str, *command: str) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotDownloaded(f"{what} could not be downloaded: {error}") from error
    if ended.returncode:
        raise NotDownloaded(
            f"{what} could not be downloaded, so the site has no planner. `{' '.join(command[:3])}` printed:\n"
            f"{(ended.stderr or ended.stdout).strip()}\nCheck the network and try again. Without the planner: make docs"
        )
