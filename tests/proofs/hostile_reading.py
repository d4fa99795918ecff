"""A data folder read as training reads it, in a process with limits; and a count of who opens what lies outside."""

import ctypes
import json
import os
import resource
import struct
import traceback
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from foretune.choices.data import Data
from foretune.core.errors import UserError
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
    _limit()
    if as_nobody and os.getuid() == 0:
        os.setuid(_NOBODY)
    try:
        source = open_source(TypeAdapter(Data).validate_python(choice), resolution_px=64)
        found = {"end": "read", **_contents(source)}
    except UserError as error:
        found = {"end": "refused", "message": str(error)}
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


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most_bytes = pages * resource.getpagesize() + _MOST_MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))


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
