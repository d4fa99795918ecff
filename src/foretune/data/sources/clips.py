"""Folders of clips: video files and folders of frames, with captions beside them or in a `metadata.jsonl`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foretune.choices.data import ClipsData
from foretune.core.errors import UserError
from foretune.data import images, videos
from foretune.data.buckets import Bucket
from foretune.data.formats import METADATA
from foretune.data.sources.captions import CLIPS, CaptionedPath, read_captions
from foretune.data.sources.clip_files import ClipFiles, ClipSample, FrameFolder, VideoFile
from foretune.data.sources.listing import DataFolder, ListedFolder, counted, walk

_UNREAD_SUFFIXES = (".mpg", ".mpeg", ".ts", ".mts", ".m2ts", ".wmv", ".flv", ".3gp", ".ogv", ".m3u8")
"""Videos in formats that are not read."""
_LEAST_FRAMES = 2


def open_clips(choice: ClipsData, largest: Bucket) -> ClipFiles:  # noqa: ARG001
    """Opens all clips of a folder and of the folders inside it, ordered by path."""
    place = DataFolder.existing(choice.path, "data.path", holds="clips", follow_links=choice.follow_links)
    listing = _listed(place)
    paths = place.in_order([*listing.videos, *listing.frames])
    if not paths:
        raise _no_clips(place, listing)
    if listing.videos:
        videos.require_decoder()
    notes = _skipped(place, listing)
    captioned = [CaptionedPath(path, _text_file(path, listing)) for path in paths]
    captions = read_captions(
        captioned, place.in_order(listing.metadata), place, CLIPS, trigger=choice.trigger, notes=notes
    )
    clips: list[ClipSample] = []
    for path, caption in zip(paths, captions, strict=True):
        if path in listing.frames:
            names = listing.frames[path]
            clips.append(
                FrameFolder(path=path, caption=caption, repeats=choice.repeats, within=place.within, names=names)
            )
        else:
            clips.append(
                VideoFile(path=path, caption=caption, repeats=choice.repeats, within=place.within, fps=choice.fps)
            )
    return ClipFiles(clips, memo_dir=Path(choice.cache_dir), notes=notes)


@dataclass
class _Listing:
    """What a folder has, without hidden files."""

    videos: list[Path] = field(default_factory=list)
    frames: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    """Folders of frames, with the names of the images in the order of display."""
    metadata: list[Path] = field(default_factory=list)
    unread: list[Path] = field(default_factory=list)
    """Videos in formats that are not read."""
    loose: list[Path] = field(default_factory=list)
    """Images that are not the frames of a clip."""
    linked: list[Path] = field(default_factory=list)
    """Links to other folders, which are not followed."""


def _listed(place: DataFolder) -> _Listing:
    listing = _Listing()
    for folder in walk(place):
        listing.linked += folder.linked
        listing.videos += _ending_in(videos.SUFFIXES, folder)
        listing.unread += _ending_in(_UNREAD_SUFFIXES, folder)
        listing.metadata += [folder.path / name for name in folder.files if name == METADATA]
        pictures = _ending_in(images.SUFFIXES, folder)
        has_others = bool(folder.folders or _ending_in(videos.SUFFIXES, folder))
        if folder.path != place.root and not has_others and len(pictures) >= _LEAST_FRAMES:
            listing.frames[folder.path] = tuple(sorted((path.name for path in pictures), key=_natural))
        else:
            listing.loose += pictures
    return listing


def _ending_in(suffixes: tuple[str, ...], folder: ListedFolder) -> list[Path]:
    return [folder.path / name for name in folder.files if name.lower().endswith(suffixes)]


def _natural(name: str) -> tuple[list[str | int], str]:
    """Sorts frame2 before frame10; text and numbers alternate. Of 1 and 01, which are equal numbers, 01 is first."""
    return [int(part) if place % 2 else part for place, part in enumerate(re.split("([0-9]+)", name))], name


def _text_file(path: Path, listing: _Listing) -> Path:
    """Returns where a caption is: `name.txt` beside `name.mp4`, or beside the folder `name`."""
    return path.with_name(f"{path.name}.txt") if path in listing.frames else path.with_suffix(".txt")


def _skipped(place: DataFolder, listing: _Listing) -> list[str]:
    notes = []
    if listing.unread:
        notes.append(
            f"{counted(listing.unread, 'file is', 'files are')} skipped in {place.asked} "
            f"({_named(place, listing.unread)}): videos must end in {', '.join(videos.SUFFIXES)}."
        )
    if listing.loose:
        notes.append(
            f"{counted(listing.loose, 'image is', 'images are')} skipped in {place.asked} "
            f"({_named(place, listing.loose)}): the frames of a clip are a folder of at least {_LEAST_FRAMES} images "
            "without videos and other folders."
        )
    return notes + place.linked_note(place.in_order(listing.linked))


def _named(place: DataFolder, paths: Sequence[Path]) -> str:
    return place.named(place.in_order(paths))


def _no_clips(place: DataFolder, listing: _Listing) -> UserError:
    others = ""
    if listing.unread:
        others = f" It has {_named(place, listing.unread)}, which cannot be read: convert them, for example to MP4."
    elif listing.loose:
        others = (
            f" It has images ({_named(place, listing.loose)}): put the frames of each clip into a folder of their own, "
            "or train on images with data.kind=folder."
        )
    return UserError(
        f"The folder {place.asked} has no clips.{others} Put videos that end in {', '.join(videos.SUFFIXES)} into it, "
        "or folders of frames, or name another folder in data.path."
    )
