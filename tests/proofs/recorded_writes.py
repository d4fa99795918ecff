"""What a process does to a directory, recorded call by call as it asks the kernel for it. Linux only.

Library code is recorded like ours: what counts is what reached the system, not which function was called.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.proofs.syscalls import AT_SYSCALL, NotPermitted, Traced, trace

_POKE_USER, _GET_SYSCALL_INFO = 6, 0x420E
# Where the registers of an x86_64 are that hold them.
_CALL_NUMBER, _CALL_RESULT = 15 * 8, 10 * 8
_AT_FDCWD = -100
_ENTRY, _EXIT = 1, 2
_INFO = struct.Struct("<B3xIQQQ6Q")
_RESULT = struct.Struct("<B3xIQQqB")
_MAP_SHARED, _PROT_WRITE = 1, 2

# By machine: the numbers of all calls that change a directory or a file, or make a change durable.
_NUMBERS = {
    "x86_64": {
        "write": 1, "open": 2, "mmap": 9, "pwrite64": 18, "writev": 20, "sendfile": 40, "fsync": 74, "fdatasync": 75,
        "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87,
        "symlink": 88, "sync": 162, "openat": 257, "mkdirat": 258, "unlinkat": 263, "renameat": 264, "linkat": 265,
        "symlinkat": 266, "splice": 275, "sync_file_range": 277, "fallocate": 285, "pwritev": 296, "syncfs": 306,
        "renameat2": 316, "copy_file_range": 326, "pwritev2": 328, "openat2": 437,
    },
    "aarch64": {
        "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37, "renameat": 38, "truncate": 45, "ftruncate": 46,
        "fallocate": 47, "openat": 56, "write": 64, "writev": 66, "pwrite64": 68, "pwritev": 70, "sendfile": 71,
        "splice": 76, "sync": 81, "fsync": 82, "fdatasync": 83, "sync_file_range": 84, "mmap": 222, "syncfs": 267,
        "renameat2": 276, "copy_file_range": 285, "pwritev2": 287, "openat2": 437,
    },
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Change:
    """One call that succeeded. Paths are relative to the directory that is watched."""

    kind: Literal["create", "mkdir", "write", "resize", "rename", "remove", "sync"]
    path: str
    to: str = ""
    """The new name, of a rename."""
    offset: int = 0
    """Where a write begins; the new size, of a resize."""
    content: str = ""
    """What is written, in hexadecimal."""


@dataclass(frozen=True)
class Refusal:
    """A call that the kernel seems to refuse: the calls that would change the directory are counted from 0 on."""

    number: int
    error: int
    """As in `errno`."""


def recorded(act: Callable[[], None], directory: Path, refusal: Refusal | None = None) -> list[Change]:
    """Runs `act` in a copy of this process, which must have no other threads; what it changes in the directory."""
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        raise NotPermitted(f"system calls of a {platform.machine()} are not known here")
    names = {number: name for name, number in numbers.items()}
    traced = Traced(act)
    if refusal is not None and platform.machine() != "x86_64":
        raise NotPermitted(f"the registers of a {platform.machine()} are not known here")
    changes: list[Change] = []
    pending: list[Change] = []
    num_calls, is_refused = 0, False
    while (stop := traced.next_stop()) is not None:
        if stop != AT_SYSCALL:
            continue
        operation, number, arguments = _entered(traced.pid)
        if operation == _ENTRY:
            call = _Call(traced.pid, names[number], arguments, directory) if number in names else None
            pending = list(call.changes()) if call is not None else []
            is_refused = bool(pending) and refusal is not None and refusal.number == num_calls
            num_calls += bool(pending)
            if is_refused:
                trace(_POKE_USER, traced.pid, -1, _CALL_NUMBER)  # no call has this number: the kernel does nothing
        elif operation == _EXIT and is_refused:
            assert refusal is not None
            trace(_POKE_USER, traced.pid, -refusal.error, _CALL_RESULT)
            pending, is_refused = [], False
        elif operation == _EXIT and pending:
            changes += _done(pending, _returned(traced.pid))
            pending = []
    return changes


def _done(asked: list[Change], result: int) -> list[Change]:
    """What of a call took place: nothing where it failed, and of a write as many bytes as were taken."""
    if result < 0:
        return []
    return [
        Change(kind="write", path=change.path, offset=change.offset, content=change.content[: 2 * result])
        if change.kind == "write"
        else change
        for change in asked
    ]


class _Call:
    """A call as it is entered: the kernel has changed nothing yet."""

    def __init__(self, pid: int, name: str, arguments: tuple[int, ...], directory: Path) -> None:
        self._pid, self._name, self._arguments, self._directory = pid, name, arguments, directory.resolve()

    def changes(self) -> Iterator[Change]:
        """What it will change in the directory; a call that could and is not modelled here is an error."""
        first, second, third, fourth = self._arguments[:4]
        here = _AT_FDCWD
        match self._name:
            case "open" | "openat":
                path, flags = (
                    (self._path(here, first), second) if self._name == "open" else (self._path(first, second), third)
                )
                yield from self._opened(path, flags)
            case "mkdir" | "unlink" | "rmdir":
                yield from self._named("mkdir" if self._name == "mkdir" else "remove", self._path(here, first))
            case "mkdirat" | "unlinkat":
                yield from self._named("mkdir" if self._name == "mkdirat" else "remove", self._path(first, second))
            case "rename":
                yield from self._renamed(self._path(here, first), self._path(here, second))
            case "renameat" | "renameat2":
                yield from self._renamed(self._path(first, second), self._path(third, fourth))
            case "write" | "pwrite64":
                yield from self._written(first, second, third, fourth if self._name == "pwrite64" else None)
            case "ftruncate":
                yield from self._resized(first, second)
            case "fsync" | "fdatasync":
                yield from self._named("sync", self._open_file(_signed(first)))
            case "mmap":
                is_written = fourth & _MAP_SHARED and third & _PROT_WRITE
                self._refuse(self._open_file(_signed(self._arguments[4])) if is_written else None)
            case _:
                self._refuse_if_within(first, second)

    def _opened(self, path: Path | None, flags: int) -> Iterator[Change]:
        if path is None or (name := self._within(path)) is None or not flags & (os.O_CREAT | os.O_TRUNC):
            return
        if path.exists():
            if flags & os.O_TRUNC:
                yield Change(kind="resize", path=name)
        else:
            yield Change(kind="create", path=name)

    def _named(self, kind: Literal["mkdir", "remove", "sync"], path: Path | None) -> Iterator[Change]:
        if path is not None and (name := self._within(path)) is not None:
            yield Change(kind=kind, path=name)

    def _renamed(self, path: Path | None, to: Path | None) -> Iterator[Change]:
        assert path is not None
        assert to is not None
        names = self._within(path), self._within(to)
        assert (names[0] is None) == (names[1] is None), f"{path} moves into the directory, or out of it, to {to}"
        if names[0] is not None and names[1] is not None:
            yield Change(kind="rename", path=names[0], to=names[1])

    def _written(self, descriptor: int, address: int, length: int, offset: int | None) -> Iterator[Change]:
        path = self._open_file(_signed(descriptor))
        if path is None or (name := self._within(path)) is None:
            return
        at = self._position(descriptor) if offset is None else offset
        yield Change(kind="write", path=name, offset=at, content=self._memory(address, length).hex())

    def _resized(self, descriptor: int, size: int) -> Iterator[Change]:
        path = self._open_file(_signed(descriptor))
        if path is not None and (name := self._within(path)) is not None:
            yield Change(kind="resize", path=name, offset=size)

    def _refuse(self, path: Path | None) -> None:
        assert path is None or self._within(path) is None, f"{self._name} of {path} is not modelled"

    def _refuse_if_within(self, *descriptors: int) -> None:
        """Calls that take two files, or paths, and those that sync everything."""
        assert self._name in ("writev", "pwritev", "pwritev2", "sendfile", "splice", "fallocate", "copy_file_range"), (
            f"{self._name} is not modelled"
        )
        for descriptor in descriptors:
            self._refuse(self._open_file(_signed(descriptor)))

    def _within(self, path: Path) -> str | None:
        """The name in the directory; None of what is elsewhere."""
        return path.relative_to(self._directory).as_posix() if path.is_relative_to(self._directory) else None

    def _path(self, folder: int, address: int) -> Path | None:
        name = b""
        while b"\0" not in name:
            # To the end of a page: the next one may not be there.
            name += self._memory(address + len(name), 4096 - (address + len(name)) % 4096)
        at = _signed(folder)
        base = Path(f"/proc/{self._pid}/cwd").readlink() if at == _AT_FDCWD else self._open_file(at)
        return None if base is None else base / os.fsdecode(name.partition(b"\0")[0])

    def _open_file(self, descriptor: int) -> Path | None:
        """None of what is no file: a pipe, or nothing at all."""
        try:
            return Path(f"/proc/{self._pid}/fd/{descriptor}").readlink()
        except OSError:
            return None

    def _position(self, descriptor: int) -> int:
        fields = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{self._pid}/fdinfo/{descriptor}").read_text().splitlines()
        )
        assert not int(fields["flags"], 8) & os.O_APPEND, "appending is not modelled"
        return int(fields["pos"])

    def _memory(self, address: int, length: int) -> bytes:
        with Path(f"/proc/{self._pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(length)


def _signed(descriptor: int) -> int:
    return ctypes.c_int32(descriptor & 0xFFFF_FFFF).value


def _entered(pid: int) -> tuple[int, int, tuple[int, ...]]:
    operation, _, _, _, number, *arguments = _INFO.unpack(_info(pid))
    return operation, number, tuple(arguments)


def _returned(pid: int) -> int:
    result: int = _RESULT.unpack(_info(pid)[: _RESULT.size])[4]
    return result


def _info(pid: int) -> bytes:
    space = ctypes.create_string_buffer(_INFO.size)
    trace(_GET_SYSCALL_INFO, pid, ctypes.addressof(space), address=_INFO.size)
    return space.raw
