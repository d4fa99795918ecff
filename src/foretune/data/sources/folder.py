"""Folders of images: captions in `name.txt` beside `name.png`, or in a `metadata.jsonl`."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from foretune.choices.data import Folder, FolderData
from foretune.core.errors import UserError
from foretune.core.input_files import parse_json, shown
from foretune.core.units import bytes_text
from foretune.data.images import SUFFIXES
from foretune.data.sources.cifar10_batches import has_batches
from foretune.data.sources.files import FileSample, FileSource, existing_folder, read_data_text

METADATA = "metadata.jsonl"
_MOST_CAPTION_BYTES = 2**20
_MOST_METADATA_BYTES = 2**30
_CAPTION_KEYS = ("text", "caption")
_MOST_NAMED = 3
_UNREAD_SUFFIXES = (
    *(".gif", ".avif", ".heic", ".heif", ".jxl", ".jp2", ".svg", ".psd", ".tga", ".ico", ".exr", ".hdr"),
    *(".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"),
    *(".mp4", ".mov", ".webm", ".mkv", ".avi"),
)
"""Images and videos in formats that are not read. Other files, such as notes and archives, are not counted as data."""


def open_folder(choice: FolderData, resolution_px: int) -> FileSource:  # noqa: ARG001
    """Opens all images of all folders of an experiment, ordered by folder, then by path."""
    samples: list[FileSample] = []
    notes: list[str] = []
    for folder in choice.all_folders():
        samples += _folder_samples(folder, notes, follow_links=choice.follow_links)
    return FileSource(samples, memo_dir=Path(choice.cache_dir), notes=notes)


def with_trigger(trigger: str | None, caption: str) -> str:
    """Returns the training caption: the trigger word, a space, the caption."""
    return f"{trigger} {caption}".strip() if trigger else caption


def _folder_samples(folder: Folder, notes: list[str], *, follow_links: bool) -> list[FileSample]:
    """Returns the images of a folder; adds what is skipped or empty to `notes`."""
    root = existing_folder(folder.path, "data.path (or the path in data.folders)")
    within = None if follow_links else root
    listing = _listed(root, follow_links=follow_links)
    images = listing.images
    if not images:
        raise _no_images(folder.path, root, listing.unread)
    notes += _skipped(folder.path, root, listing)
    listed = {
        path: caption for file in listing.metadata for path, caption in _metadata_captions(file, root, within).items()
    }
    captions = [_text_beside(image, listed, within) for image in images]
    lacking = [image for image, caption in zip(images, captions, strict=True) if caption is None]
    # If no image has a caption, the user trains without captions. If some have, the others were forgotten.
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
        FileSample(
            path=image, caption=with_trigger(folder.trigger, caption or ""), repeats=folder.repeats, within=within
        )
        for image, caption in zip(images, captions, strict=True)
    ]


def _skipped(asked: str, root: Path, listing: "_Listing") -> list[str]:
    notes = []
    if listing.unread:
        notes.append(
            f"{_counted(listing.unread, 'file is', 'files are')} skipped in {asked} ({_named(listing.unread, root)}): "
            f"images must end in {', '.join(SUFFIXES)}."
        )
    if listing.linked:
        notes.append(
            f"{_counted(listing.linked, 'linked folder is', 'linked folders are')} skipped in {asked} "
            f"({_named(listing.linked, root)}). To read what links lead to: data.follow_links=true"
        )
    return notes


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
    """Names the first few files and counts the others."""
    named = ", ".join(shown(file.relative_to(root).as_posix()) for file in files[:_MOST_NAMED])
    return f"{named} and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else named


def _counted(files: list[Path], one: str, many: str) -> str:
    return f"1 {one}" if len(files) == 1 else f"{len(files)} {many}"


@dataclass
class _Listing:
    """The files in a folder without hidden ones, sorted as text, so that the order is the same everywhere."""

    images: list[Path] = field(default_factory=list)
    metadata: list[Path] = field(default_factory=list)
    unread: list[Path] = field(default_factory=list)
    """Images in formats that are not read."""
    linked: list[Path] = field(default_factory=list)
    """Links to other folders, which are not followed."""


def _listed(root: Path, *, follow_links: bool) -> _Listing:
    listing = _Listing()
    visited: set[tuple[int, int]] = set()
    for parent, folders, files in os.walk(root, followlinks=follow_links, onerror=_refuse_folder):
        if follow_links and not _is_first_visit(parent, visited):
            # Links can form a cycle.
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if not follow_links:
            links = [Path(parent, name) for name in folders if Path(parent, name).is_symlink()]
            listing.linked += [path for path in links if not path.resolve().is_relative_to(root.resolve())]
        for name in files:
            if name == METADATA:
                listing.metadata.append(Path(parent, name))
            elif not name.startswith(".") and name.lower().endswith(SUFFIXES):
                listing.images.append(Path(parent, name))
            elif not name.startswith(".") and name.lower().endswith(_UNREAD_SUFFIXES):
                listing.unread.append(Path(parent, name))
    for paths in (listing.images, listing.metadata, listing.unread, listing.linked):
        paths.sort(key=lambda path: path.relative_to(root).as_posix())
    return listing


def _is_first_visit(folder: str, visited: set[tuple[int, int]]) -> bool:
    found = Path(folder).stat()
    identity = (found.st_dev, found.st_ino)
    if identity in visited:
        return False
    visited.add(identity)
    return True


def _refuse_folder(error: OSError) -> None:
    raise UserError(
        f"The folder {shown(error.filename)} cannot be listed ({error.strerror}). Make it readable, or take it out of "
        "the data."
    ) from error


def _text_beside(image: Path, listed: dict[Path, str], within: Path | None) -> str | None:
    """Returns the caption in the text file beside an image, else the one in a metadata file."""
    beside = image.with_suffix(".txt")
    if os.path.lexists(beside):
        return _one_line(read_data_text(beside, _MOST_CAPTION_BYTES, within))
    return listed.get(image)


def _metadata_captions(file: Path, root: Path, within: Path | None) -> dict[Path, str]:
    captions = {}
    for number, line in enumerate(read_data_text(file, _MOST_METADATA_BYTES, within).splitlines(), start=1):
        if not line.strip():
            continue
        where = f"Line {number} of {shown(file)}"
        try:
            row = parse_json(line)
        except ValueError as error:
            raise UserError(f"{where} is not JSON ({error}). Fix it or remove it.") from error
        name = row.get("file_name") if isinstance(row, dict) else None
        texts = [row[key] for key in _CAPTION_KEYS if isinstance(row.get(key), str)] if name else []
        if not isinstance(name, str) or not texts:
            raise UserError(
                f"{where} must be an object with a file_name and a text (or caption), "
                'such as {"file_name": "1.png", "text": "a harbour at dusk"}.'
            )
        image = Path(os.path.normpath(file.parent / name))
        if not image.is_relative_to(root):
            raise UserError(f"{where} names {shown(name)}, which is outside of {shown(root)}. Remove the line.")
        if not os.path.lexists(image):
            raise UserError(f"{where} names {shown(name)}, which is not there. Add it or remove the line.")
        if len(texts[0]) > _MOST_CAPTION_BYTES or not _is_text(texts[0]):
            raise UserError(
                f"{where} has a caption that is not text, or longer than {bytes_text(_MOST_CAPTION_BYTES)}. Fix it."
            )
        captions[image] = _one_line(texts[0])
    return captions


def _is_text(text: str) -> bool:
    """Whether text has no NUL and no lone surrogates, which JSON can contain and UTF-8 files cannot."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _forgotten_captions(asked: str, root: Path, lacking: list[Path], num_images: int) -> UserError:
    example = shown(lacking[0].relative_to(root).with_suffix(".txt").as_posix())
    return UserError(
        f"In {asked}, {len(lacking)} of {num_images} images have no caption: {_named(lacking, root)}. Write each "
        f"caption into a text file beside the image ({example}), or remove all captions to train without."
    )
