"""Packs what runs in the browser: Pyodide, its standard library, packages and Foretune as bytecode, and traces."""

import gzip
import hashlib
import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune import catalog
from foretune.core.errors import UserError
from foretune.trace.shipped import SUFFIX
from tools.browser_planner.downloads import PYODIDE, require_node
from tools.browser_planner.modules import ROOT, SERVED, needed_modules
from tools.browser_planner.question import Question

PACKAGES, LIBRARY, WASM = "packages.zip", "python_stdlib.zip", "pyodide.asm.wasm"
_SOURCE = ROOT / "src" / "foretune"
_PYODIDE_FILES = ("pyodide.mjs", "pyodide.asm.mjs")
# Development, servers and other programs' protocols. Pyodide itself takes asyncio and what that imports.
UNUSED_LIBRARY = (
    "_aix_support", "_android_support", "_apple_support", "_ios_support", "_osx_support", "_pyrepl", "bdb",
    "cProfile", "compileall", "dbm", "doctest", "ensurepip", "filecmp", "ftplib", "idlelib",
    "imaplib", "mailbox", "multiprocessing", "optparse", "pdb", "pickletools", "poplib", "profile", "profiling",
    "pstats", "pyclbr", "pydoc", "smtplib", "sqlite3", "symtable", "tabnanny", "timeit", "tkinter", "trace",
    "turtle", "unittest", "venv", "wsgiref", "xml", "xmlrpc", "zipapp",
)  # fmt: skip
_ENCODINGS = ("__init__", "aliases", "ascii", "charmap", "cp437", "idna", "latin_1", "punycode", "raw_unicode_escape",
              "unicode_escape", "utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_8", "utf_8_sig")  # fmt: skip
# Models of pydantic 1, which no field of ours has, and the plug-in of a type checker.
_UNUSED_PACKAGES = ("pydantic/v1/", "pydantic/mypy", "annotated_types/test_cases")
_UNUSED_DATA = ("published_measurements.csv", "CORRECTIONS.md")


@dataclass(frozen=True)
class Known:
    """A question and the answer that the packed planner must give, too."""

    question: Question
    answer: Mapping[str, Any]


def pack_all(pyodide: Path, wheels: Sequence[Path], scratch: Path, folder: Path, known: "Known") -> None:
    """Writes all files that run in the browser. They depend on sources and downloads alone, and so are kept."""
    done = scratch / f"packed-{_fingerprint(wheels)}"
    if not done.is_dir():
        work = scratch / "packing"
        shutil.rmtree(work, ignore_errors=True)
        (work / "out" / "traces").mkdir(parents=True)
        _stage_packages(wheels, work / "packages")
        _stage_library(pyodide, work / "library")
        _compile(pyodide, (work / "packages", work / PACKAGES), (work / "library", work / LIBRARY))
        for name in _PYODIDE_FILES:
            # The map of its source is not served.
            text = (pyodide / name).read_text(encoding="utf-8")
            kept = "\n".join(line for line in text.splitlines() if not line.startswith("//# sourceMappingURL="))
            (work / "out" / name).write_text(kept, encoding="utf-8")
        for path in (pyodide / WASM, work / PACKAGES, work / LIBRARY):
            # The page unpacks them, so that they are small also where the server does not compress.
            packed = gzip.compress(path.read_bytes(), compresslevel=9, mtime=0)
            (work / "out" / f"{path.name}.gz").write_bytes(packed)
        lock = json.loads((pyodide / "pyodide-lock.json").read_text(encoding="utf-8"))
        (work / "out" / "pyodide-lock.json").write_text(json.dumps({"info": lock["info"], "packages": {}}))
        _pack_traces(work / "out" / "traces")
        (work / "out" / "licences.txt").write_text(_licences(wheels), encoding="utf-8")
        _check(pyodide, work, known)
        (work / "out").rename(done)
    shutil.copytree(done, folder, dirs_exist_ok=True)


def source_files() -> Iterator[Path]:
    """All files of this repository that the page's answers depend on."""
    yield from needed_modules().values()
    yield from sorted(path for path in (_SOURCE / "catalog" / "data").rglob("*") if path.is_file())
    yield from sorted((_SOURCE / "trace" / "data").iterdir())
    yield from sorted(path for path in Path(__file__).parent.iterdir() if path.is_file())


def digest_of(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def model_of_trace(file: str) -> str | None:
    """The denoiser whose steps a trace has; None for encoders, which several models share, and for other files."""
    return next((name for name in catalog.denoisers() if file.startswith(f"{name}.")), None)


def _fingerprint(wheels: Sequence[Path]) -> str:
    return f"{PYODIDE}-{digest_of([*source_files(), *wheels])}"


def _stage_packages(wheels: Sequence[Path], folder: Path) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                top = name.partition("/")[0].removesuffix(".py")
                # Extension modules for other platforms stay behind.
                if (
                    top in SERVED
                    and (name.endswith(".py") or "wasm32" in name)
                    and not name.startswith(_UNUSED_PACKAGES)
                ):
                    packed.extract(name, folder)
    stage_ours(folder)


def stage_ours(folder: Path, models: Iterable[str] = ()) -> None:
    """Copies what is served of this repository, with the traces of some models."""
    for module, path in needed_modules().items():
        base = ROOT if module.startswith("tools") else ROOT / "src"
        _copy(path, folder / path.relative_to(base))
    data = _SOURCE / "catalog" / "data"
    for path in (path for path in data.rglob("*") if path.is_file() and path.name not in _UNUSED_DATA):
        _copy(path, folder / path.relative_to(ROOT / "src"))
    for path in (_SOURCE / "trace" / "data").iterdir():
        if model_of_trace(path.name) in (None, *models):
            _copy(path, folder / path.relative_to(ROOT / "src"))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _stage_library(pyodide: Path, folder: Path) -> None:
    with zipfile.ZipFile(pyodide / LIBRARY) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if _is_used(name)])


def _is_used(name: str) -> bool:
    """Whether a file of the standard library is served."""
    top, _, rest = name.removesuffix(".py").partition("/")
    return top not in UNUSED_LIBRARY and (top != "encodings" or rest in _ENCODINGS)


def _compile(pyodide: Path, *pairs: tuple[Path, Path]) -> None:
    words = [str(path.resolve()) for pair in pairs for path in pair]
    script = str(Path(__file__).with_name("compile.mjs"))
    subprocess.run([require_node(), script, str(pyodide.resolve()), *words], check=True)


def _check(pyodide: Path, work: Path, known: Known) -> None:
    """Nothing is shipped that does not answer as the planner does here."""
    words = (work / LIBRARY, work / PACKAGES, work / "out" / "traces" / f"{known.question.model}.zip")
    script = str(Path(__file__).with_name("check.mjs"))
    command = [require_node(), script, str(pyodide.resolve()), *map(str, words), json.dumps(vars(known.question))]
    answered = subprocess.run(command, check=False, capture_output=True, text=True)
    if answered.returncode:
        raise UserError(f"The packed planner does not run:\n{answered.stderr[-2000:]}")
    found = json.loads(answered.stdout)
    if found.get("sentence") != known.answer["sentence"] or found["experiment"] != known.answer["experiment"]:
        raise UserError(f"The packed planner answers otherwise: {found.get('sentence', found)}")


def _pack_traces(folder: Path) -> None:
    """One archive for each model, as most visitors ask about one."""
    by_model: dict[str, list[Path]] = {}
    for path in sorted((_SOURCE / "trace" / "data").glob(f"*{SUFFIX}")):
        model = model_of_trace(path.name)
        if model is not None:
            by_model.setdefault(model, []).append(path)
    for model, paths in by_model.items():
        with zipfile.ZipFile(folder / f"{model}.zip", "w", zipfile.ZIP_STORED) as packed:
            for path in paths:
                packed.writestr(zipfile.ZipInfo(path.name), path.read_bytes())


def _licences(wheels: Sequence[Path]) -> str:
    parts = [f"Pyodide {PYODIDE}: Mozilla Public License 2.0, https://github.com/pyodide/pyodide\n"]
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            texts = [name for name in packed.namelist() if "licen" in name.lower().rpartition("/")[2]]
            words = [packed.read(name).decode("utf-8", "replace") for name in texts]
        parts.append("\n\n".join(["-".join(wheel.name.split("-")[:2]), *words]))
    return f"\n{'=' * 80}\n".join(parts)
