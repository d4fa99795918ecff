"""Files from the Hub into huggingface_hub's own cache: where a connection broke off, the rest is fetched later.

huggingface_hub throws away what it has of a file when a download fails (seen in version 2.4), which may be 9 of 10 GB.
Here such a part stays beside the file's place in the cache, and the next attempt continues it. Files in Xet storage are
left to huggingface_hub, whose client for them fetches pieces in parallel.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foretune.hub.repository import RemoteFile, Repository
from foretune.hub.surroundings import token
from foretune.record.locking import try_lock

Progress = Callable[[int, int], None]
"""Bytes that are here, of how many."""
_WORKERS = 4


def no_progress(done: int, total: int) -> None:
    """For those who do not watch."""


def download(repository: Repository, files: Sequence[RemoteFile], progress: Progress = no_progress) -> None:
    """Downloads those of the files that the cache does not have."""
    # Two tokenizers often share a file: the same content is not downloaded twice at the same time.
    missing: dict[str, list[RemoteFile]] = {}
    for file in files:
        if not repository.is_here(file):
            missing.setdefault(file.sha256 or file.blob_id or file.path, []).append(file)
    total = sum(file.size_bytes for file in files)
    counter = _Counter(progress, total, total - sum(file.size_bytes for alike in missing.values() for file in alike))
    with ThreadPoolExecutor(_WORKERS) as pool:
        try:
            for finished in [pool.submit(_download_alike, repository, alike, counter) for alike in missing.values()]:
                finished.result()
        except BaseException:
            # Ctrl-C, too: the other downloads end at their next piece, and keep what they have.
            counter.is_stopped = True
            pool.shutdown(cancel_futures=True)
            raise


def remove(repository: Repository, file: RemoteFile) -> None:
    """Takes a file out of the cache: what it is called there, and its content."""
    path = repository.folder / file.path
    path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)


class _Stopped(Exception):
    """Another download failed, or the user stopped them all."""


@dataclass
class _Counter:
    """Bytes so far, counted by several threads."""

    progress: Progress
    total: int
    done: int
    is_stopped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, num_bytes: int) -> None:
        if self.is_stopped:
            raise _Stopped
        with self.lock:
            self.done += num_bytes
            self.progress(min(self.done, self.total), self.total)

    def bar(self) -> type[Any]:
        """What huggingface_hub takes for a progress bar of one file."""
        counter = self

        class Bar:
            """Counts, and draws nothing."""

            def __init__(self, *_: Any, initial: int = 0, **__: Any) -> None:
                if initial:
                    counter.add(initial)

            def update(self, num_bytes: float | None = 1) -> None:
                counter.add(int(num_bytes or 0))

            def __enter__(self) -> "Bar":
                return self

            def __exit__(self, *_: object) -> None: ...

            def close(self) -> None: ...

            def refresh(self) -> None: ...

            def set_postfix_str(self, *_: Any, **__: Any) -> None: ...

            def set_description_str(self, *_: Any, **__: Any) -> None: ...

        return Bar


def _download_alike(repository: Repository, files: Sequence[RemoteFile], counter: _Counter) -> None:
    from huggingface_hub import hf_hub_download

    _continue_part(repository, files[0], counter)
    for file in files:
        # It finds the content in its cache, or downloads it, and gives it its name.
        hf_hub_download(
            repository.repo,
            file.path,
            repo_type=repository.kind,
            revision=repository.commit,
            token=token(),
            tqdm_class=counter.bar(),
        )


def _continue_part(repository: Repository, file: RemoteFile, counter: _Counter) -> None:
    """Downloads what is missing of a file's content, unless it is in Xet storage."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get

    url = hf_hub_url(repository.repo, file.path, repo_type=repository.kind, revision=repository.commit)
    listed = get_hf_file_metadata(url, token=token(), retry_on_errors=True)
    if listed.etag is None or (listed.xet_file_data is not None and _uses_xet()):
        return
    content = repository.folder.parents[1] / "blobs" / Path(listed.etag).name
    if content.exists():
        return
    content.parent.mkdir(parents=True, exist_ok=True)
    part = content.with_name(f"{content.name}.foretune.incomplete")
    with part.open("ab") as stream:
        if not try_lock(stream.fileno()):
            return  # another process continues it: huggingface_hub downloads a copy of its own
        # The address of the repository, not that of the storage behind it, which is signed and expires.
        http_get(
            url,
            stream,
            resume_size=stream.tell(),
            headers=_headers(),
            expected_size=listed.size,
            tqdm_class=counter.bar(),
        )
        stream.flush()
        os.fsync(stream.fileno())
    # Not while it is open: Windows renames no open file. Another process may have been quicker meanwhile.
    if not content.exists():
        part.replace(content)


def _headers() -> dict[str, str]:
    """Of a request for content. Compressed on the way, a file could not be continued in its middle."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, not re-exported

    return {**build_hf_headers(token=token()), "Accept-Encoding": "identity"}


def _uses_xet() -> bool:
    from huggingface_hub import constants

    return find_spec("hf_xet") is not None and not constants.HF_HUB_DISABLE_XET
