"""What was published, or would be."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from foretune.core.units import counted_text, disk_text


def published_lines(
    folder: Path, repo: str, files: Sequence[tuple[str, int]], card: str, url: str | None
) -> Iterator[str]:
    """The files with their sizes; of a dry run also the card, which nobody has seen yet."""
    total = disk_text(sum(size for _, size in files))
    yield f"{counted_text(len(files), 'files')}, {total}, {'for' if url is None else 'in'} {repo}:"
    yield from (f"  {disk_text(size):>8}  {name}" for name, size in files)
    if url is not None:
        yield f"Published: {url}"
        return
    yield f"\n{card}"
    yield f"Nothing was uploaded. The folder is {folder}. Without --dry-run it is uploaded to {repo}."
