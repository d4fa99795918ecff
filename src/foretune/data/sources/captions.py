"""Captions of a data folder: `name.txt` beside the sample, or a `metadata.jsonl` with a line for each sample."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from foretune.core.errors import UserError
from foretune.core.input_files import parse_json, shown
from foretune.core.units import bytes_text
from foretune.data.sources.files import read_data_text
from foretune.data.sources.listing import DataFolder, counted

_MOST_CAPTION_BYTES = 2**20
_MOST_METADATA_BYTES = 2**30
_CAPTION_KEYS = ("text", "caption")


class Medium(NamedTuple):
    """What messages call the samples."""

    one: str
    many: str
    example: str


IMAGES = Medium("image", "images", "1.png")
CLIPS = Medium("clip", "clips", "1.mp4")


class CaptionedPath(NamedTuple):
    """A sample, and the text file that its caption can be in."""

    path: Path
    text_file: Path


def with_trigger(trigger: str | None, caption: str) -> str:
    """Returns the training caption: the trigger word, a space, the caption."""
    return f"{trigger} {caption}".strip() if trigger else caption


def caption_in_name(path: Path) -> str:
    """Returns the caption that a file's name is: `a_red_boat.png` is "a red boat"."""
    return _one_line(path.stem.replace("_", " "))


def read_captions(
    samples: Sequence[CaptionedPath],
    metadata: Sequence[Path],
    place: DataFolder,
    medium: Medium,
    *,
    trigger: str | None,
    notes: list[str],
) -> list[str]:
    """Returns the training caption of each sample; adds a note on empty ones to `notes`.

    Raises if some samples have a caption and others have none.
    """
    listed = {path: text for file in metadata for path, text in _metadata_captions(file, place, medium).items()}
    texts = [_text_of(sample, listed, place.within) for sample in samples]
    lacking = [sample for sample, text in zip(samples, texts, strict=True) if text is None]
    # If no sample has a caption, the user trains without captions. If some have, the others were forgotten.
    if lacking and len(lacking) < len(samples):
        raise _forgotten_captions(lacking, len(samples), place, medium)
    empty = [sample.path for sample, text in zip(samples, texts, strict=True) if text == ""]
    if empty:
        left = f"only the trigger {trigger!r}" if trigger else "no caption"
        notes.append(
            f"{counted(empty, 'caption is', 'captions are')} empty in {place.asked}, of {place.named(empty)}: "
            f"trained with {left}."
        )
    return [with_trigger(trigger, text or "") for text in texts]


def _text_of(sample: CaptionedPath, listed: dict[Path, str], within: Path | None) -> str | None:
    """Returns the caption in the text file beside a sample, else the one in a metadata file."""
    if os.path.lexists(sample.text_file):
        return _one_line(read_data_text(sample.text_file, _MOST_CAPTION_BYTES, within))
    return listed.get(sample.path)


def _metadata_captions(file: Path, place: DataFolder, medium: Medium) -> dict[Path, str]:
    captions = {}
    for number, line in enumerate(read_data_text(file, _MOST_METADATA_BYTES, place.within).splitlines(), start=1):
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
                f'such as {{"file_name": "{medium.example}", "text": "a harbour at dusk"}}.'
            )
        path = Path(os.path.normpath(file.parent / name))
        if not path.is_relative_to(place.root):
            raise UserError(f"{where} names {shown(name)}, which is outside of {shown(place.root)}. Remove the line.")
        if not os.path.lexists(path):
            raise UserError(f"{where} names {shown(name)}, which is not there. Add it or remove the line.")
        if len(texts[0]) > _MOST_CAPTION_BYTES or not _is_text(texts[0]):
            raise UserError(
                f"{where} has a caption that is not text, or longer than {bytes_text(_MOST_CAPTION_BYTES)}. Fix it."
            )
        captions[path] = _one_line(texts[0])
    return captions


def _is_text(text: str) -> bool:
    """Whether text has no NUL and no lone surrogates, which JSON can contain and UTF-8 files cannot."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _forgotten_captions(
    lacking: Sequence[CaptionedPath], num_samples: int, place: DataFolder, medium: Medium
) -> UserError:
    example = shown(lacking[0].text_file.relative_to(place.root).as_posix())
    named = place.named([sample.path for sample in lacking])
    return UserError(
        f"In {place.asked}, {len(lacking)} of {num_samples} {medium.many} have no caption: {named}. Write each "
        f"caption into a text file beside the {medium.one} ({example}), or remove all captions to train without."
    )
