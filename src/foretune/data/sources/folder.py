"""Folders of images: captions in `name.txt` beside `name.png`, or in a `metadata.jsonl`."""

import json
import os
from pathlib import Path

from foretune.choices.data import Folder, FolderData
from foretune.core.errors import UserError
from foretune.data.images import SUFFIXES
from foretune.data.sources.cifar10_batches import has_batches
from foretune.data.sources.files import FileSample, FileSource, existing_folder

METADATA = "metadata.jsonl"
_CAPTION_KEYS = ("text", "caption")
_MOST_NAMED = 3
_UNREAD_SUFFIXES = (
    *(".gif", ".avif", ".heic", ".heif", ".jxl", ".jp2", ".svg", ".psd", ".tga", ".ico", ".exr", ".hdr"),
    *(".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"),
    *(".mp4", ".mov", ".webm", ".mkv", ".avi"),
)
"""Pictures and videos that are not read. Other files, such as notes and archives, are not counted as data."""


def open_folder(choice: FolderData, resolution_px: int) -> FileSource:  # noqa: ARG001
    """All images of all folders of an experiment, in the order of the folders, then of the paths."""
    samples: list[FileSample] = []
    notes: list[str] = []
    for folder in choice.all_folders():
        samples += _folder_samples(folder, notes)
    return FileSource(samples, memo_dir=Path(choice.cache_dir), notes=notes)


def with_trigger(trigger: str | None, caption: str) -> str:
    """A caption as it is trained with: the trigger word, a space, the caption."""
    return f"{trigger} {caption}".strip() if trigger else caption


def _folder_samples(folder: Folder, notes: list[str]) -> list[FileSample]:
    """The images of a folder; what was skipped or is empty is added to `notes`."""
    root = existing_folder(folder.path, "data.path (or the path in data.folders)")
    images, metadata_files, unread = _listed(root)
    if not images:
        raise _no_images(folder.path, root, unread)
    if unread:
        notes.append(
            f"{_counted(unread, 'file is', 'files are')} skipped in {folder.path} ({_named(unread, root)}): "
            f"images must end in {', '.join(SUFFIXES)}."
        )
    listed = {path: caption for file in metadata_files for path, caption in _metadata_captions(file).items()}
    captions = [_text_beside(image, listed) for image in images]
    lacking = [image for image, caption in zip(images, captions, strict=True) if caption is None]
    # Nothing has a caption: the user trains without any. Some have: the others were forgotten.
    if lacking and len(lacking) < len(images):
        raise _forgotten_captions(folder.path, root, lacking, len(images))
    empty = [image for image, caption in zip(images, captions, strict=True) if caption == ""]
    if empty:
        left = f"only the trigger {folder.trigger!r}" if folder.trigger else "no caption"
        notes.append(
            f"{_counted(empty, 'caption is', 'captions are')} empty in {folder.path}, of {_named(empty, root)}: "
            f"trained with {left}."
        )
    return [
        FileSample(path=image, caption=with_trigger(folder.trigger, caption or ""), repeats=folder.repeats)
        for image, caption in zip(images, captions, strict=True)
    ]


def _no_images(asked: str, root: Path, unread: list[Path]) -> UserError:
    if has_batches(root):
        return UserError(
            f"The folder {asked} holds the python version of CIFAR-10, not image files. Read it with data.kind=cifar10"
        )
    others = (
        f" It has {_named(unread, root)}, which cannot be read: convert them, for example to PNG." if unread else ""
    )
    return UserError(
        f"The folder {asked} has no images.{others} Put files that end in {', '.join(SUFFIXES)} into it, "
        "or name another folder in data.path."
    )


def _named(files: list[Path], root: Path) -> str:
    """The first few by name, the others by number."""
    named = ", ".join(file.relative_to(root).as_posix() for file in files[:_MOST_NAMED])
    return f"{named} and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else named


def _counted(files: list[Path], one: str, many: str) -> str:
    return f"1 {one}" if len(files) == 1 else f"{len(files)} {many}"


def _listed(root: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """Images, metadata files and unreadable pictures below a folder, hidden ones left out; sorted as text, so equal
    everywhere.
    """
    images, metadata_files, unread = [], [], []
    for parent, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name == METADATA:
                metadata_files.append(Path(parent, name))
            elif not name.startswith(".") and name.lower().endswith(SUFFIXES):
                images.append(Path(parent, name))
            elif not name.startswith(".") and name.lower().endswith(_UNREAD_SUFFIXES):
                unread.append(Path(parent, name))

    def place(path: Path) -> str:
        return path.relative_to(root).as_posix()

    return sorted(images, key=place), sorted(metadata_files, key=place), sorted(unread, key=place)


def _text_beside(image: Path, listed: dict[Path, str]) -> str | None:
    """The caption in the text file beside an image; failing that, the one in a metadata file."""
    beside = image.with_suffix(".txt")
    if beside.is_file():
        return _one_line(_read_text(beside))
    return listed.get(image)


def _metadata_captions(file: Path) -> dict[Path, str]:
    captions = {}
    for number, line in enumerate(_read_text(file).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"Line {number} of {file} is not JSON ({error}). Fix it or remove it.") from error
        name = row.get("file_name") if isinstance(row, dict) else None
        texts = [row[key] for key in _CAPTION_KEYS if isinstance(row.get(key), str)] if name else []
        if not isinstance(name, str) or not texts:
            raise UserError(
                f"Line {number} of {file} must be an object with a file_name and a text (or caption), "
                'such as {"file_name": "1.png", "text": "a harbour at dusk"}.'
            )
        image = Path(os.path.normpath(file.parent / name))
        if not image.is_file():
            raise UserError(f"Line {number} of {file} names {name}, which is not there. Add it or remove the line.")
        captions[image] = _one_line(texts[0])
    return captions


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not text in UTF-8 ({error.reason}). Save it as UTF-8.") from error


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _forgotten_captions(asked: str, root: Path, lacking: list[Path], num_images: int) -> UserError:
    example = lacking[0].relative_to(root).with_suffix(".txt").as_posix()
    return UserError(
        f"In {asked}, {len(lacking)} of {num_images} images have no caption: {_named(lacking, root)}. Write each "
        f"caption into a text file beside the image ({example}), or remove all captions to train without."
    )
