"""Folders of images: captions in `name.txt` beside `name.png`, or in a `metadata.jsonl`."""

import json
import os
from pathlib import Path

from foretune.choices.data import Folder, FolderData
from foretune.core.errors import UserError
from foretune.data.images import SUFFIXES
from foretune.data.sources.files import FileSample, FileSource, existing_folder

METADATA = "metadata.jsonl"
_CAPTION_KEYS = ("text", "caption")
_MOST_NAMED = 3


def open_folder(choice: FolderData, resolution_px: int) -> FileSource:  # noqa: ARG001
    """All images of all folders of an experiment, in the order of the folders, then of the paths."""
    samples = [sample for folder in choice.all_folders() for sample in _folder_samples(folder)]
    return FileSource(samples, memo_dir=Path(choice.cache_dir))


def with_trigger(trigger: str | None, caption: str) -> str:
    """A caption as it is trained with: the trigger word, a space, the caption."""
    return f"{trigger} {caption}".strip() if trigger else caption


def _folder_samples(folder: Folder) -> list[FileSample]:
    root = existing_folder(folder.path, "data.path (or the path in data.folders)")
    images, metadata_files = _listed(root)
    if not images:
        raise UserError(
            f"The folder {folder.path} has no images. Put files that end in {', '.join(SUFFIXES)} into it, "
            "or name another folder in data.path."
        )
    listed = {path: caption for file in metadata_files for path, caption in _metadata_captions(file).items()}
    captions = [_text_beside(image, listed) for image in images]
    lacking = [image for image, caption in zip(images, captions, strict=True) if caption is None]
    # Nothing has a caption: the user trains without any. Some have: the others were forgotten.
    if lacking and len(lacking) < len(images):
        raise _forgotten_captions(folder.path, root, lacking, len(images))
    return [
        FileSample(path=image, caption=with_trigger(folder.trigger, caption or ""), repeats=folder.repeats)
        for image, caption in zip(images, captions, strict=True)
    ]


def _listed(root: Path) -> tuple[list[Path], list[Path]]:
    """Images and metadata files below a folder, hidden ones left out; sorted as text, so equal everywhere."""
    images, metadata_files = [], []
    for parent, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name == METADATA:
                metadata_files.append(Path(parent, name))
            elif not name.startswith(".") and name.lower().endswith(SUFFIXES):
                images.append(Path(parent, name))

    def place(path: Path) -> str:
        return path.relative_to(root).as_posix()

    return sorted(images, key=place), sorted(metadata_files, key=place)


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
            raise UserError(f"Line {number} of {file} is not JSON ({error}). Mend it or remove it.") from error
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
    named = ", ".join(image.relative_to(root).as_posix() for image in lacking[:_MOST_NAMED])
    more = f" and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
    example = lacking[0].relative_to(root).with_suffix(".txt").as_posix()
    return UserError(
        f"In {asked}, {len(lacking)} of {num_images} images have no caption: {named}{more}. Write each one's "
        f"caption into a text file beside it ({example}), or remove all captions to train without."
    )
