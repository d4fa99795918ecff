"""Whether downloaded files are those that the Hub lists, bit for bit."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from foretune.core.errors import UserError
from foretune.hub.repository import RemoteFile, Repository
from foretune.hub.transfer import Progress, download, no_progress, remove

_PIECE_BYTES = 2**23


class DamagedDownload(UserError):
    """A file that is still not the Hub's after a second download."""

    exit_code = 1


def verified(
    repository: Repository,
    files: Sequence[RemoteFile],
    warn: Callable[[str], None],
    progress: Progress = no_progress,
) -> int:
    """Compares every file with the hash that the Hub lists; a damaged one is downloaded again, once.

    Returns the number of files that have been compared: those that the Hub listed with a hash.
    """
    damaged = _damaged(repository, files, progress)
    for file in damaged:
        warn(f"{file.path} is damaged: its hash is not the one that the Hub lists. It is downloaded again.")
        remove(repository, file)
    if damaged:
        download(repository, damaged)
        damaged = _damaged(repository, damaged, no_progress)
    if damaged:
        for file in damaged:
            remove(repository, file)
        names = ", ".join(file.path for file in damaged)
        raise DamagedDownload(
            f"{names} of {repository.repo} was damaged twice: its hash is not the one that the Hub lists. It has been "
            "removed. Check the disk and the network (a proxy?), then run the command again."
        )
    return sum(file.sha256 is not None or file.blob_id is not None for file in files)


def _damaged(repository: Repository, files: Sequence[RemoteFile], progress: Progress) -> list[RemoteFile]:
    total, done, found = sum(file.size_bytes for file in files), 0, []
    for file in files:
        if not _is_whole(repository.folder / file.path, file):
            found.append(file)
        done += file.size_bytes
        progress(done, total)
    return found


def _is_whole(path: Path, file: RemoteFile) -> bool:
    if path.stat().st_size != file.size_bytes:
        return False
    if file.sha256 is not None:
        return _hashed(path, "sha256") == file.sha256
    # Git hashes a small file behind a header with its length.
    return file.blob_id is None or _hashed(path, "sha1", f"blob {file.size_bytes}\0".encode()) == file.blob_id


def _hashed(path: Path, kind: str, header: bytes = b"") -> str:
    digest = hashlib.new(kind, header, usedforsecurity=False)
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
