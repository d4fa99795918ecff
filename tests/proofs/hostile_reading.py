"""A data folder read as training reads it, in a process with limits; and a count of who opens what lies outside."""

import ctypes
import json
import os
import resource
import struct
import time
import traceback
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from foretune.choices.data import Data
from foretune.core.errors import UserError
from foretune.data.buckets import Bucket
from foretune.data.sources import Source, open_source, scan

_MOST_CPU_S = 120
"""Of processor time: a folder that keeps its reader busy for ever is found out by this."""
_MOST_MORE_BYTES = 3 * 2**30
"""Of address space beyond what the imports took: an image of the most pixels that are read takes a third of it."""
_NOBODY = 65534
_IN_ACCESS, _IN_OPEN, _IN_NONBLOCK = 0x1, 0x20, 0o4000
_EVENT = struct.Struct("iIII")


def read_folder(choice: dict[str, Any], answer: str, *, as_nobody: bool) -> None:
    """Reads everything that a training would, and writes down what came of it: for the fork server."""
    limit_resources()
    if as_nobody and os.getuid() == 0:
        os.setuid(_NOBODY)
    try:
        source = open_source(TypeAdapter(Data).validate_python(choice), largest=Bucket(64, 64))
        found = {"end": "read", **_contents(source)}
    except UserError as error:
        found = {"end": "refused", "message": str(error), "problems": getattr(error, "problems", [str(error)])}
    except BaseException:  # noqa: BLE001 - whatever it is, it is the answer
        found = {"end": "crashed", "message": traceback.format_exc()}
    Path(answer).write_text(json.dumps(found))


def read_naively(path: str, answer: str) -> None:
    """What a reader does that takes every name for a file."""
    Path(answer).write_text(json.dumps({"num_bytes": len(Path(path).read_bytes())}))


def _contents(source: Source) -> dict[str, Any]:
    scan(source)
    infos = [source.info(index) for index in range(len(source))]
    return {
        "captions": [info.caption for info in infos],
        "colours": [source.pixels(index)[0, 0].tolist() for index in range(len(source))],
        "notes": source.notes(),
        "fingerprint": source.fingerprint(),
    }


def limit_resources() -> None:
    """Of this process: processor time and address space."""
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most_bytes = pages * resource.getpagesize() + _MOST_MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))


class HangWatch:
    """Tells a process that waits for what never comes from one that a busy machine keeps waiting.

    The latter is ready to run, or reads from a disk. The former, and every process it started, sleeps and uses no
    processor time, look after look.
    """

    def __init__(self, pid: int, num_looks: int = 120) -> None:
        self._pid, self._num_looks = pid, num_looks
        self._ticks, self._num_still, self._last_look_s = -1, 0, 0.0

    def has_hung(self) -> bool:
        """To be asked again and again; looks once a second."""
        if time.monotonic() - self._last_look_s >= 1:
            self._last_look_s = time.monotonic()
            threads = _threads(self._pid)
            ticks = sum(used for _, used in threads)
            is_still = bool(threads) and all(state == "S" for state, _ in threads) and ticks == self._ticks
            self._ticks = ticks
            self._num_still = self._num_still + 1 if is_still else 0
        return self._num_still >= self._num_looks


def _threads(pid: int) -> list[tuple[str, int]]:
    """State and ticks of processor time of every thread of a process and of those it started; none if it has ended."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            children = (task / "children").read_text().split()
        except OSError:  # it has just ended
            continue
        found.append((fields[0], int(fields[11]) + int(fields[12])))
        found += [thread for child in children for thread in _threads(int(child))]
    return found


class OpenCount:
    """Counts, by the kernel's own notices, how often a folder or a file in it is opened or read."""

    def __init__(self, folder: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(_IN_NONBLOCK)
        assert self._descriptor >= 0, os.strerror(ctypes.get_errno())
        for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            watch = self._libc.inotify_add_watch(self._descriptor, os.fsencode(place), _IN_OPEN | _IN_ACCESS)
            assert watch >= 0, os.strerror(ctypes.get_errno())

    def close(self) -> list[str]:
        """The names that were opened or read since; "" is the folder itself."""
        names = []
        try:
            while content := os.read(self._descriptor, 2**16):
                while content:
                    *_, num_bytes = _EVENT.unpack_from(content)
                    names.append(content[_EVENT.size : _EVENT.size + num_bytes].rstrip(b"\0").decode())
                    content = content[_EVENT.size + num_bytes :]
        except BlockingIOError:
            pass
        finally:
            os.close(self._descriptor)
        return names
