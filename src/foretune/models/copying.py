"""Copies a model folder file by file, without files that links point to outside it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from foretune.core.errors import UserError
from foretune.core.input_files import OutsideFile, RefusedFile, open_input

_MOST_FILE_BYTES = 2**50
_MOST_FOLDERS_DEEP = 16
_BLOCK_BYTES = 2**20


def copy_model(
    folder: Path, output: Path, leaves_out: Callable[[Path], bool] = lambda _: False, *, follow_links: bool = False
) -> None:
    """Copies all files that are not left out, themselves or by folder. Writes nothing if one of them is refused.

    `follow_links` also copies files outside the model that links point to.
    """
    output.mkdir(parents=True, exist_ok=True)
    within = None if follow_links else _own_folder(folder)
    try:
        files = list(_files(folder, within, leaves_out))
        for path in files:
            open_input(path, _MOST_FILE_BYTES, within=within).close()
    except OutsideFile as error:
        raise UserError(
            f"{error} To copy the linked files, run: foretune export RUN --follow-links; foretune publish and "
            "foretune import-checkpoint have the option, too."
        ) from error
    for path in files:
        target = output / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_input(path, _MOST_FILE_BYTES, within=within) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, _BLOCK_BYTES)


def _own_folder(folder: Path) -> Path:
    """Returns the folder that contains the model's files: a snapshot in the Hub's cache links to `../../blobs`."""
    repository = folder.parent.parent
    is_snapshot = folder.parent.name == "snapshots" and repository.name.startswith("models--")
    return repository if is_snapshot else folder


def _files(
    folder: Path, within: Path | None, leaves_out: Callable[[Path], bool], above: tuple[Path, ...] = ()
) -> Iterator[Path]:
    """Yields the files in a folder and in linked folders, as long as they are inside `within`."""
    real = folder.resolve()
    if within is not None and not real.is_relative_to(within.resolve()):
        raise OutsideFile(folder, str(real), within)
    if real in above or len(above) > _MOST_FOLDERS_DEEP:
        raise RefusedFile(folder, "is a link to itself, or nested too deep. Remove it.")
    for entry in sorted(path for path in folder.iterdir() if not leaves_out(path)):
        if entry.is_dir():
            yield from _files(entry, within, leaves_out, (*above, real))
        else:
            yield entry
