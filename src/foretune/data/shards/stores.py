"""Where packed sets are stored: a local folder, or an address of an HTTP server or of S3 (over fsspec).

Reads are ranges of known length, and what arrives has exactly that length, or the read is a `ShardFault`. Credentials
and endpoints come from the environment or the usual configuration files (`AWS_PROFILE`, `AWS_ENDPOINT_URL`,
`~/.aws/config`, `FSSPEC_S3`), never from an address.
"""

import os
import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from foretune.choices.addresses import is_remote, remote_protocol
from foretune.core.errors import MissingExtra, UserError
from foretune.core.input_files import RefusedFile, open_input, shown
from foretune.data.shards.retrying import ShardFault
from foretune.record.redaction import redacted_text

_MOST_FILE_BYTES = 2**50
_READABLE = 0o644
_MOST_REASON_LETTERS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long a server may be silent before a read counts as stalled."""

    connect_s: float = 10.0
    read_s: float = 30.0


class ShardStore(Protocol):
    """The files of one packed set, by name. Picklable; a process that gets a copy opens its own connections.

    Each method makes one attempt: `Retry.call` repeats it.
    """

    def where(self, name: str = "") -> str:
        """Returns what a message calls a file, or the whole set."""

    def read(self, name: str, start: int, num_bytes: int, file_bytes: int) -> bytes:
        """Returns a range of a file that has `file_bytes` altogether."""

    def forget(self, name: str) -> None:
        """Drops a local copy of a file, because what was read of it is damaged."""

    def read_small(self, name: str, most_bytes: int) -> bytes | None:
        """Returns a whole file of unknown length; None where there is none of this name."""

    def num_bytes(self, name: str) -> int | None:
        """Returns the length of a file; None where there is none of this name."""

    def names(self) -> list[str]:
        """Returns all names, sorted. Not every HTTP server lists them."""

    def write(self, name: str, data: bytes) -> None:
        """Writes a file in one step: a reader sees all of it or nothing."""

    def upload(self, local: Path, name: str) -> None:
        """The same for a file on the local disk, which stays where it is or is moved."""

    def remove(self, name: str) -> None:
        """Removes a file if it is there."""


def open_store(place: str, patience: Patience = Patience()) -> ShardStore:  # noqa: B008 - frozen
    """Returns the store at a folder, an `http://`, `https://` or `s3://` address. Nothing is read yet."""
    if is_remote(place):
        return RemoteStore(place.rstrip("/"), patience)
    return LocalStore(Path(place).expanduser().absolute())


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A folder."""

    folder: Path

    def where(self, name: str = "") -> str:
        return shown(self.folder / name)

    def path(self, name: str) -> Path:
        return self.folder / name

    def read(self, name: str, start: int, num_bytes: int, file_bytes: int) -> bytes:
        try:
            with open_input(self.folder / name, _MOST_FILE_BYTES) as file:
                found_bytes = os.fstat(file.fileno()).st_size
                if found_bytes != file_bytes:
                    raise ShardFault(f"it has {found_bytes:,} bytes where the index says {file_bytes:,}")
                file.seek(start)
                data = file.read(num_bytes)
        except ShardFault:
            raise
        except OSError as error:
            raise ShardFault(f"it cannot be read ({error.strerror or error})") from error
        return _whole(data, num_bytes)

    def forget(self, name: str) -> None:
        """There is no other copy."""

    def read_small(self, name: str, most_bytes: int) -> bytes | None:
        try:
            with open_input(self.folder / name, most_bytes) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ShardFault(f"it cannot be read ({error.strerror or error})") from error

    def num_bytes(self, name: str) -> int | None:
        try:
            return (self.folder / name).stat().st_size
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        return sorted(entry.name for entry in os.scandir(self.folder) if entry.is_file() and entry.name[0] != ".")

    def write(self, name: str, data: bytes) -> None:
        unfinished = self.folder / f".{name}.{uuid.uuid4().hex}"
        with _writing(self.where(name)):
            self.folder.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(data)
            unfinished.replace(self.folder / name)

    def upload(self, local: Path, name: str) -> None:
        unfinished = self.folder / f".{name}.{uuid.uuid4().hex}"
        with _writing(self.where(name)):
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.move(local, unfinished)
            unfinished.chmod(_READABLE)  # a temporary file is its owner's only
            unfinished.replace(self.folder / name)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)


@dataclass
class RemoteStore:
    """An address that fsspec opens. Connections belong to one process, so a copy in another one opens its own."""

    address: str
    patience: Patience = field(default_factory=Patience)
    _opened: tuple[int, Any, tuple[type[BaseException], ...]] | None = None

    def where(self, name: str = "") -> str:
        return shown(f"{self.address}/{name}" if name else self.address)

    def read(self, name: str, start: int, num_bytes: int, file_bytes: int) -> bytes:
        if not num_bytes:
            return b""
        data = self._attempt("cat_file", self.where(name), start=start, end=start + num_bytes)
        if len(data) == file_bytes != num_bytes:
            # A server that does not know ranges sends the whole file.
            data = data[start : start + num_bytes]
        return _whole(data, num_bytes)

    def forget(self, name: str) -> None:
        """There is no local copy."""

    def read_small(self, name: str, most_bytes: int) -> bytes | None:
        found_bytes = self.num_bytes(name)
        if found_bytes is None:
            return None
        if found_bytes > most_bytes:
            raise RefusedFile(Path(name), f"in {self.where()} has {found_bytes:,} bytes; at most {most_bytes:,}.")
        return cast("bytes", self._attempt("cat_file", self.where(name)))

    def num_bytes(self, name: str) -> int | None:
        found = self._attempt("info", self.where(name), if_absent=None)
        return None if found is None else int(found["size"] or 0)

    def names(self) -> list[str]:
        found = self._attempt("ls", self.address, if_absent=[], detail=False, refresh=True)
        return sorted({path.rstrip("/").rpartition("/")[2] for path in found} - {""})

    def write(self, name: str, data: bytes) -> None:
        self._attempt("pipe_file", self.where(name), data)
        self._require_written(name, len(data))

    def upload(self, local: Path, name: str) -> None:
        self._attempt("put_file", str(local), self.where(name))
        self._require_written(name, local.stat().st_size)

    def remove(self, name: str) -> None:
        self._attempt("rm_file", self.where(name), if_absent=None)

    def __getstate__(self) -> tuple[str, Patience]:
        return self.address, self.patience

    def __setstate__(self, state: tuple[str, Patience]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _require_written(self, name: str, num_bytes: int) -> None:
        found_bytes = self.num_bytes(name)
        if found_bytes != num_bytes:
            raise ShardFault(f"{found_bytes} bytes arrived where {num_bytes:,} were sent")

    def _attempt(self, operation: str, *arguments: Any, if_absent: Any = ..., **options: Any) -> Any:
        filesystem, faults = self._files()
        try:
            return getattr(filesystem, operation)(*arguments, **options)
        except FileNotFoundError as error:
            if if_absent is not ...:
                return if_absent
            raise ShardFault("it is not there") from error
        except PermissionError as error:
            raise UserError(
                f"{self.where()} refuses access ({_reason(error)}). Credentials come from the environment or the "
                "usual files: AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws; for a public "
                """bucket: FSSPEC_S3='{"anon": true}'"""
            ) from error
        except NotImplementedError as error:
            raise UserError(f"{self.where()} can only be read. Choose a folder or an s3:// address.") from error
        except faults as error:
            raise ShardFault(_reason(error)) from error

    def _files(self) -> tuple[Any, tuple[type[BaseException], ...]]:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), *_filesystem(self.address, self.patience))
        return self._opened[1:]


def _filesystem(address: str, patience: Patience) -> tuple[Any, tuple[type[BaseException], ...]]:
    """Returns fsspec's file system for an address, and what its calls raise when the network or the server fails."""
    protocol = remote_protocol(address)
    try:
        import aiohttp
        import fsspec

        if protocol != "s3":
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=patience.connect_s, sock_read=patience.read_s)
            options: dict[str, Any] = {"client_kwargs": {"timeout": timeout, "trust_env": True}}
            faults: tuple[type[BaseException], ...] = (OSError, EOFError, aiohttp.ClientError)
        else:
            import s3fs  # noqa: F401 - so that a missing package is named before fsspec looks for it
            from botocore.exceptions import BotoCoreError, ClientError

            options = {
                "config_kwargs": {
                    "connect_timeout": patience.connect_s,
                    "read_timeout": patience.read_s,
                    # Attempts are counted in one place, here.
                    "retries": {"total_max_attempts": 1},
                }
            }
            faults = (OSError, EOFError, aiohttp.ClientError, BotoCoreError, ClientError)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"Data at {protocol}:// addresses", "stream") from error
    filesystem = fsspec.filesystem(protocol, skip_instance_cache=True, use_listings_cache=False, **options)
    if protocol == "s3":
        filesystem.retries = 1
    return filesystem, faults


class _writing:  # noqa: N801 - used as a function
    """Turns what a file system says into a fault, or into an error that no further attempt can help."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, ShardFault):
            raise UserError(
                f"{self._where} cannot be written ({error.strerror or error}). Make room or give permission, or "
                "choose another place; what is finished is kept."
            ) from error


def _whole(data: bytes, num_bytes: int) -> bytes:
    if len(data) != num_bytes:
        raise ShardFault(f"{len(data):,} bytes arrived where {num_bytes:,} were requested")
    return data


def _reason(error: BaseException) -> str:
    """Returns an error of a library in a line, without addresses that carry signatures."""
    text = " ".join(str(error).split()) or type(error).__name__
    return shown(redacted_text(text)[:_MOST_REASON_LETTERS])
