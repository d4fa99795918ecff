"""Imports hostile archives one by one, each in a small process of its own, and notes what came of it.

    python -m tests.proofs.archive_reading FOLDER NAME...

The process has imported nothing but what imports archives, so that its memory is that of the import.
"""

import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from foretune.api.import_archive import import_archive
from foretune.core.errors import UserError
from tests.proofs.hostile_archives import ALL

_MOST_CPU_S, _MOST_WALL_S = 60, 600
_WRITES = {"os.mkdir", "os.symlink", "os.link", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"}
_RUNS = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class", "socket.connect"}


class Watch:
    """What the import writes, by the interpreter's own notices, and whether it lies where it should."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self.outside: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        is_written = event in _WRITES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & 3)
        path = str(arguments[0]) if arguments else ""
        if event in _RUNS or (is_written and not path.startswith(self._folder) and path.startswith("/")):
            self.outside.append(f"{event} {path}")


def read(name: str, folder: Path) -> dict[str, Any]:
    """What came of one archive; the folder is its own."""
    place, output = folder / "place", folder / "place" / "output"
    place.mkdir(parents=True)
    archive = place / "hostile.archive"
    content = ALL[name].make(archive)
    if content is not None:
        archive.write_bytes(content)
    del content
    (place / "result").touch()
    pid = os.fork()
    if pid == 0:
        _import(archive, output, place / "result")
        os._exit(0)
    _, status, used = os.wait4(pid, 0)
    found: dict[str, Any] = json.loads(
        (place / "result").read_text() or '{"end": "died", "message": "", "skipped": {}}'
    )
    kept = {"hostile.archive", "result", "output"}
    return {
        "name": name,
        **found,
        "status": os.waitstatus_to_exitcode(status),
        "left": sorted(path.name for path in place.iterdir() if path.name not in kept)
        + sorted(path.name for path in folder.iterdir() if path != place),
        "files": sorted(path.relative_to(output).as_posix() for path in output.rglob("*") if not path.is_dir()),
        "odd": [str(path) for path in output.rglob("*") if _is_odd(path)],
        "processor_s": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * 1024,
    }  # fmt: skip


def _is_odd(path: Path) -> bool:
    """Whether it is a link, or a file that may be run."""
    return path.is_symlink() or (path.is_file() and bool(path.stat().st_mode & 0o6111))


def _import(archive: Path, output: Path, result: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    signal.alarm(_MOST_WALL_S)
    os.chdir(archive.parent)
    watch = Watch(archive.parent)
    found: dict[str, Any] = {"skipped": {}, "message": ""}
    try:
        imported = import_archive(archive, output)
        found |= {"end": "imported", "skipped": {why: one.num for why, one in imported.skipped.items()}}
    except UserError as error:
        found |= {"end": "refused", "message": str(error)}
    except BaseException:  # noqa: BLE001 - whatever it is, it is the answer
        found |= {"end": "crashed", "message": traceback.format_exc()}
    result.write_text(json.dumps({**found, "outside": watch.outside}))


def main(folder: Path, names: list[str]) -> None:
    import foretune.data.archives.importing  # noqa: F401 - so that each process has it

    began_s = time.process_time()
    with (folder / "answers.jsonl").open("w") as answers:
        for number, name in enumerate(names):
            answers.write(json.dumps(read(name, folder / f"{number:03d}")) + "\n")
    print(f"{time.process_time() - began_s:.1f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
