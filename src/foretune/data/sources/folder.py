"""Folders of images: captions in `name.txt` beside `name.png`, or in a `metadata.jsonl`."""

from dataclasses import dataclass, field
from pathlib import Path

from foretune.choices.data import CaptionPlace, Folder, FolderData
from foretune.core.errors import UserError
from foretune.data.buckets import Bucket
from foretune.data.formats import METADATA
from foretune.data.images import SUFFIXES
from foretune.data.sources.captions import IMAGES, CaptionedPath, caption_in_name, read_captions, with_trigger
from foretune.data.sources.cifar10_batches import has_batches
from foretune.data.sources.files import FileSample, FileSource
from foretune.data.sources.listing import DataFolder, counted, walk
from foretune.data.sources.packed import packed_note

_UNREAD_SUFFIXES = (
    *(".gif", ".avif", ".heic", ".heif", ".jxl", ".jp2", ".svg", ".psd", ".tga", ".ico", ".exr", ".hdr"),
    *(".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"),
    *(".mp4", ".mov", ".webm", ".mkv", ".avi"),
)
"""Images and videos in formats that are not read. Other files, such as notes and archives, are not counted as data."""


def open_folder(choice: FolderData, largest: Bucket) -> FileSource:  # noqa: ARG001
    """Opens all images of all folders of an experiment, ordered by folder, then by path."""
    samples: list[FileSample] = []
    notes: list[str] = []
    for folder in choice.all_folders():
        samples += _folder_samples(folder, notes, choice.captions, follow_links=choice.follow_links)
    return FileSource(samples, memo_dir=Path(choice.cache_dir), notes=notes)


def _folder_samples(
    folder: Folder, notes: list[str], captions_from: CaptionPlace, *, follow_links: bool
) -> list[FileSample]:
    """Returns the images of a folder; adds what is skipped or empty to `notes`."""
    place = DataFolder.existing(
        folder.path, "data.path (or the path in data.folders)", holds="images", follow_links=follow_links
    )
    listing = _listed(place)
    if not listing.images:
        raise _no_images(place, listing.unread)
    notes += _skipped(place, listing)
    if captions_from == "filename":
        captions = [with_trigger(folder.trigger, caption_in_name(image)) for image in listing.images]
    else:
        captioned = [CaptionedPath(image, image.with_suffix(".txt")) for image in listing.images]
        captions = read_captions(captioned, listing.metadata, place, IMAGES, trigger=folder.trigger, notes=notes)
    return [
        FileSample(path=image, caption=caption, repeats=folder.repeats, within=place.within)
        for image, caption in zip(listing.images, captions, strict=True)
    ]


def _skipped(place: DataFolder, listing: "_Listing") -> list[str]:
    notes = []
    if listing.unread:
        notes.append(
            f"{counted(listing.unread, 'file is', 'files are')} skipped in {place.asked} "
            f"({place.named(listing.unread)}): images must end in {', '.join(SUFFIXES)}."
        )
    return notes + place.linked_note(listing.linked)


def _no_images(place: DataFolder, unread: list[Path]) -> UserError:
    if has_batches(place.root):
        return UserError(
            f"The folder {place.asked} holds the python version of CIFAR-10, not image files. Read it with "
            "data.kind=cifar10"
        )
    if packed := packed_note(Path(place.asked)):
        return UserError(f"The folder {place.asked} has no images.{packed}")
    others = f" It has {place.named(unread)}, which cannot be read: convert them, for example to PNG." if unread else ""
    return UserError(
        f"The folder {place.asked} has no images.{others} Put files that end in {', '.join(SUFFIXES)} into it, "
        "or name another folder in data.path."
    )


@dataclass
class _Listing:
    """The files in a folder without hidden ones, sorted as text, so that the order is the same everywhere."""

    images: list[Path] = field(default_factory=list)
    metadata: list[Path] = field(default_factory=list)
    unread: list[Path] = field(default_factory=list)
    """Images in formats that are not read."""
    linked: list[Path] = field(default_factory=list)
    """Links to other folders, which are not followed."""


def _listed(place: DataFolder) -> _Listing:
    listing = _Listing()
    for folder in walk(place):
        listing.linked += folder.linked
        for name in folder.files:
            if name == METADATA:
                listing.metadata.append(folder.path / name)
            elif name.lower().endswith(SUFFIXES):
                listing.images.append(folder.path / name)
            elif name.lower().endswith(_UNREAD_SUFFIXES):
                listing.unread.append(folder.path / name)
    return _Listing(
        images=place.in_order(listing.images),
        metadata=place.in_order(listing.metadata),
        unread=place.in_order(listing.unread),
        linked=place.in_order(listing.linked),
    )
