"""A repository of the Hub at one commit: a model's index, and the files that it holds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import hexdigits
from typing import Any, Literal

from foretune.choices.model import PIPELINE_INDEX, read_json
from foretune.core.errors import UserError
from foretune.hub.selection import needed_files
from foretune.hub.surroundings import token

_MAIN = "main"
_CARD = "README.md"


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository, as the Hub lists it."""

    path: str
    size_bytes: int
    sha256: str | None
    """Of a large file. Small ones have `blob_id`; with neither, a file cannot be verified."""
    blob_id: str | None
    """Git's hash of a small file."""


@dataclass(frozen=True)
class Repository:
    """One commit. A branch may move; what was opened does not."""

    repo: str
    commit: str
    folder: Path
    """Its snapshot in huggingface_hub's cache."""
    index: Mapping[str, Any]
    files: tuple[RemoteFile, ...]
    kind: Literal["model", "dataset"] = "model"

    def needed(self, denoiser_part: str) -> tuple[RemoteFile, ...]:
        """The files that a training needs."""
        names = set(needed_files((file.path for file in self.files), self.index, denoiser_part))
        return tuple(file for file in self.files if file.path in names)

    def is_here(self, file: RemoteFile) -> bool:
        """Whether the cache has it. It appears there under its name once it is complete."""
        return (self.folder / file.path).is_file()


def open_repository(repo: str, revision: str | None) -> Repository:
    """Downloads the index of a pipeline and pins the commit that a branch points to now.

    Without a network, the cache answers: the commit that the branch pointed to when it was last downloaded.
    """
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download(repo, revision=revision or _MAIN, token=token(), allow_patterns=[PIPELINE_INDEX]))
    if not (folder / PIPELINE_INDEX).is_file():
        raise UserError(
            f"{repo} has no {PIPELINE_INDEX}, so it is not in the diffusers layout. Its publisher often has a second "
            "repository that is: its name ends with -diffusers or -Diffusers."
        )
    commit = folder.name
    files = tuple(_files(repo, commit, folder, "model"))
    return Repository(repo, commit, folder, read_json(folder / PIPELINE_INDEX), files)


def open_dataset_repository(repo: str, revision: str | None = None) -> Repository:
    """Pins the commit of a data set; downloads its card alone."""
    return _open_by_card(repo, revision, "dataset")


def open_adapter_repository(repo: str, revision: str | None = None) -> Repository:
    """Pins the commit of an adapter; downloads its card alone."""
    return _open_by_card(repo, revision, "model")


def _open_by_card(repo: str, revision: str | None, kind: Literal["model", "dataset"]) -> Repository:
    from huggingface_hub import snapshot_download

    folder = Path(
        snapshot_download(repo, repo_type=kind, revision=revision or _MAIN, token=token(), allow_patterns=[_CARD])
    )
    return Repository(repo, folder.name, folder, {}, tuple(_files(repo, folder.name, folder, kind)), kind)


def _files(repo: str, commit: str, folder: Path, kind: Literal["model", "dataset"]) -> Iterable[RemoteFile]:
    from huggingface_hub import HfApi, get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError, HTTPError  # type: ignore[attr-defined]
    from huggingface_hub.hf_api import RepoFile

    try:
        for file in HfApi(token=token()).list_repo_tree(repo, recursive=True, revision=commit, repo_type=kind):
            if isinstance(file, RepoFile):
                large = file.lfs
                sha256, blob_id = (None, file.blob_id) if large is None else (large.sha256, None)
                yield RemoteFile(file.path, file.size, sha256, blob_id)
    except (OSError, HTTPError):
        # No network: the cache remembers names and sizes; hashes are the names of contents.
        try:
            cached = {file.path: file.size for file in get_cached_repo_tree(repo, revision=commit, repo_type=kind)}
        except CachedRepoTreeNotFoundError:
            here = [path for path in folder.rglob("*") if path.is_file()]
            cached = {path.relative_to(folder).as_posix(): path.stat().st_size for path in here}
        for path, size_bytes in sorted(cached.items()):
            name = (folder / path).resolve().name
            is_sha256, is_git_hash = (len(name) == length and set(name) <= set(hexdigits) for length in (64, 40))
            yield RemoteFile(path, size_bytes, name if is_sha256 else None, name if is_git_hash else None)
