"""`import_archive`: images and captions of an archive, as a folder to train on."""

from pathlib import Path
from typing import TYPE_CHECKING

from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.core.output_files import require_writable

if TYPE_CHECKING:
    from foretune.data.archives.importing import ImportedArchive

_MB = 10**6


def import_archive(
    archive: str | Path, output: str | Path, *, most_bytes: int | None = None, observer: Observer | None = None
) -> "ImportedArchive":
    """Takes the images and captions out of a zip or tar (also gz, bz2, xz, zst) into a new folder.

    Names that lead out of the folder, links, devices and all other files are skipped and reported. The folder appears
    when everything is written.

    Args:
        archive: the file.
        output: the folder to make; it must not exist, or be empty.
        most_bytes: the size of the unpacked files at most; 1 TiB if left out.
        observer: receives progress.

    Raises:
        RefusedFile: the archive is damaged, unpacks to too much, or is none that can be streamed.
        UserError: there is no image in it, or the folder has files.
    """
    from foretune.data.archives.importing import import_members
    from foretune.data.archives.limits import ImportLimits

    path, target, observer = Path(archive), Path(output), observer or Observer()
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    require_writable(target)
    limits = ImportLimits() if most_bytes is None else ImportLimits(total_bytes=most_bytes)
    return import_members(
        path,
        target,
        limits,
        lambda done, total: observer.preparing("reading MB", done // _MB, total // _MB) if total >= _MB else None,
    )
