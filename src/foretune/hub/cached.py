"""What the cache of huggingface_hub holds of a repository. Works without huggingface_hub, and without a network."""

from pathlib import Path
from typing import Literal

from foretune.choices.model import PIPELINE_INDEX, read_json
from foretune.core.errors import UserError
from foretune.hub.selection import data_files, needed_files
from foretune.hub.surroundings import cache_folder


def cached_bytes(
    repo: str, kind: Literal["model", "dataset"], revision: str | None, denoiser_part: str | None = None
) -> int:
    """Size of the files in the cache that training reads, at a revision: the newest that was downloaded, if None."""
    folder = cache_folder() / f"{kind}s--{repo.replace('/', '--')}"
    snapshot = _snapshot(folder, revision or "main")
    if snapshot is None:
        return 0
    paths = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    if denoiser_part is None:
        names = data_files(paths)
    else:
        try:
            names = needed_files(paths, read_json(snapshot / PIPELINE_INDEX), denoiser_part)
        except UserError:
            return 0
    return sum((snapshot / name).stat().st_size for name in names)


def _snapshot(folder: Path, revision: str) -> Path | None:
    """A revision is a commit, or a branch whose commit was stored when it was downloaded."""
    try:
        commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
    except OSError:
        commit = revision
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None
