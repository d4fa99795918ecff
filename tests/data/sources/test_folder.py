"""Folders: captions, triggers, repeats, and mistakes answered with what to do."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretune.choices.data import FolderData
from foretune.core.errors import ExperimentErrors, UserError
from foretune.data import images
from foretune.data.buckets import Bucket
from foretune.data.sources import Source, open_source, scan
from tests.data.made import save_image


def _opened(tmp_path: Path, **fields: Any) -> Source:
    fields.setdefault("path", str(tmp_path / "images"))
    choice = FolderData.model_validate({"kind": "folder", "cache_dir": str(tmp_path / "cache"), **fields})
    return open_source(choice, largest=Bucket(64, 64))


def _captions(source: Source) -> list[str]:
    return [source.info(index).caption for index in range(len(source))]


def test_images_below_a_folder_come_in_the_order_of_their_paths(tmp_path: Path):
    for place, name in enumerate(["b.png", "A.JPG", "sub/a.webp", "a b.bmp", ".hidden/x.png", "._b.png"]):
        save_image(tmp_path / "images" / name, size_px=(8 + place, 8))
    (tmp_path / "images" / "notes.md").write_text("no image")
    source = _opened(tmp_path)
    assert [source.info(index).width_px for index in range(len(source))] == [9, 11, 8, 10]
    assert _captions(source) == [""] * 4


def test_captions_lie_beside_the_images(tmp_path: Path):
    for name in "ab":
        save_image(tmp_path / "images" / f"{name}.png")
        (tmp_path / "images" / f"{name}.txt").write_bytes(f"\ufeff a  harbour\nat dusk {name}\n".encode())
    assert _captions(_opened(tmp_path)) == ["a harbour at dusk a", "a harbour at dusk b"]
    assert _captions(_opened(tmp_path, trigger="sks")) == [
        "sks a harbour at dusk a",
        "sks a harbour at dusk b",
    ]


def test_captions_lie_in_a_metadata_file_and_text_beside_wins(tmp_path: Path):
    for name in ("a.png", "sub/b.png", "sub/c.png"):
        save_image(tmp_path / "images" / name)
    rows = [{"file_name": "a.png", "text": "one"}, {"file_name": "sub/b.png", "caption": "two", "other": 1}]
    lines = "\n".join(json.dumps(row) for row in rows) + "\n\n"
    (tmp_path / "images" / "metadata.jsonl").write_text(lines)
    (tmp_path / "images" / "sub" / "metadata.jsonl").write_text('{"file_name": "c.png", "text": "three"}')
    assert _captions(_opened(tmp_path)) == ["one", "two", "three"]
    (tmp_path / "images" / "a.txt").write_text("beside")
    assert _captions(_opened(tmp_path)) == ["beside", "two", "three"]


def test_each_folder_has_its_own_repeats_and_trigger(tmp_path: Path):
    save_image(tmp_path / "mine" / "1.png")
    (tmp_path / "mine" / "1.txt").write_text("a cat")
    save_image(tmp_path / "other" / "1.png")
    save_image(tmp_path / "other" / "2.png", size_px=(9, 9))
    mine = {"path": str(tmp_path / "mine"), "repeats": 5, "trigger": "sks"}
    source = _opened(tmp_path, path=None, folders=[mine, {"path": str(tmp_path / "other"), "trigger": "photo"}])
    assert _captions(source) == ["sks a cat", "photo", "photo"]
    assert [source.repeats(index) for index in range(3)] == [5, 1, 1]


def test_captions_can_be_the_names_of_the_images(tmp_path: Path):
    for name in ("a_red  boat.png", "sub/no underscore.png"):
        save_image(tmp_path / "images" / name)
    (tmp_path / "images" / "sub" / "no underscore.txt").write_text("not this")
    assert _captions(_opened(tmp_path, captions="filename")) == ["a red boat", "no underscore"]
    assert _captions(_opened(tmp_path, captions="filename", trigger="sks")) == ["sks a red boat", "sks no underscore"]


def test_the_fingerprint_is_of_contents_captions_and_repeats_only(tmp_path: Path):
    for place in ("images", "elsewhere/deep"):
        save_image(tmp_path / place / "a.png")
        (tmp_path / place / "a.txt").write_text("a cat")
    first = _opened(tmp_path).fingerprint()
    elsewhere = str(tmp_path / "elsewhere" / "deep")
    assert _opened(tmp_path, path=elsewhere).fingerprint() == first
    assert _opened(tmp_path, path=elsewhere, repeats=2).fingerprint() != first
    assert _opened(tmp_path, path=elsewhere, trigger="x").fingerprint() != first
    save_image(Path(elsewhere) / "a.png", colour=(1, 2, 3))
    assert _opened(tmp_path, path=elsewhere).fingerprint() != first


def test_a_second_start_does_not_read_the_images_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in "abc":
        image = save_image(tmp_path / "images" / f"{name}.png")
        os.utime(image, (1_000_000_000, 1_000_000_000))
    seen: list[tuple[int, int]] = []
    scan(_opened(tmp_path), on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    first = _opened(tmp_path).fingerprint()
    read: list[str] = []
    measure = images.size_px

    def noted(data: bytes, name: str) -> tuple[int, int]:
        read.append(Path(name).name)
        return measure(data, name)

    monkeypatch.setattr(images, "size_px", noted)
    assert _opened(tmp_path).fingerprint() == first
    assert read == []
    changed = save_image(tmp_path / "images" / "b.png", size_px=(20, 10))
    source = _opened(tmp_path)
    assert (source.info(1).width_px, source.info(1).height_px) == (20, 10)
    scan(source)
    assert read == [changed.name]


def test_pixels_are_the_file_s(tmp_path: Path):
    save_image(tmp_path / "images" / "a.png", size_px=(5, 3), colour=(7, 8, 9))
    pixels = _opened(tmp_path).pixels(0)
    assert pixels.shape == (3, 5, 3)
    assert np.array_equal(pixels[2, 4], (7, 8, 9))


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"There is no folder .*images.*data\.path"):
        _opened(tmp_path)
    (tmp_path / "images").write_text("")
    with pytest.raises(UserError, match="is a file, not a folder"):
        _opened(tmp_path)


def test_a_folder_without_images_says_which_files_it_wants(tmp_path: Path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.gif").write_bytes(b"GIF89a")
    with pytest.raises(UserError, match=r"no images.*\.png"):
        _opened(tmp_path)


def test_forgotten_captions_are_named(tmp_path: Path):
    for name in "abcdef":
        save_image(tmp_path / "images" / f"{name}.png")
    (tmp_path / "images" / "d.txt").write_text("a cat")
    with pytest.raises(
        UserError, match=r"5 of 6 images have no caption: a\.png, b\.png, c\.png and 2 more.*\(a\.txt\)"
    ):
        _opened(tmp_path)


def test_a_corrupted_image_is_named(tmp_path: Path):
    whole = save_image(tmp_path / "images" / "a.png", size_px=(64, 64)).read_bytes()
    (tmp_path / "images" / "b.png").write_bytes(b"not an image")
    with pytest.raises(UserError, match=r"b\.png cannot be read"):
        scan(_opened(tmp_path))
    (tmp_path / "images" / "b.png").write_bytes(whole[:-30])
    with pytest.raises(UserError, match=r"b\.png cannot be read"):
        _opened(tmp_path).pixels(1)


def test_corrupted_images_are_named_together(tmp_path: Path):
    for name in "abcd":
        save_image(tmp_path / "images" / f"{name}.png")
    for name in "bd":
        (tmp_path / "images" / f"{name}.png").write_bytes(b"not an image")
    with pytest.raises(ExperimentErrors, match="has 2 mistakes") as found:
        scan(_opened(tmp_path))
    assert [problem.count(".png cannot be read") for problem in found.value.problems] == [1, 1]


def test_an_image_that_vanishes_or_changes_is_named(tmp_path: Path):
    image = save_image(tmp_path / "images" / "a.png")
    source = _opened(tmp_path)
    source.info(0)
    save_image(image, size_px=(30, 30))
    with pytest.raises(UserError, match=r"a\.png has changed"):
        source.pixels(0)
    image.unlink()
    for ask in (source.pixels, _opened_before_removal(tmp_path, image).info):
        with pytest.raises(UserError, match=r"a\.png cannot be opened"):
            ask(0)


def _opened_before_removal(tmp_path: Path, image: Path) -> Source:
    save_image(image)
    source = _opened(tmp_path)
    image.unlink()
    return source


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("{", "Line 1 .* is not JSON"),
        ("[1]", "Line 1 .* must be an object"),
        ('{"file_name": "a.png"}', "Line 1 .* must be an object"),
        ('{"file_name": "z.png", "text": "x"}', r"names z\.png, which is not there"),
    ],
)
def test_mistakes_in_a_metadata_file_are_named(tmp_path: Path, line: str, answer: str):
    save_image(tmp_path / "images" / "a.png")
    (tmp_path / "images" / "metadata.jsonl").write_text(line)
    with pytest.raises(UserError, match=answer):
        _opened(tmp_path)


def test_a_caption_in_another_encoding_is_named(tmp_path: Path):
    save_image(tmp_path / "images" / "a.png")
    (tmp_path / "images" / "a.txt").write_bytes("caf\u00e9".encode("latin-1"))
    with pytest.raises(UserError, match=r"a\.txt is not text in UTF-8"):
        _opened(tmp_path)


def test_pictures_that_cannot_be_read_are_counted_and_named(tmp_path: Path):
    for name in ("a.png", "b.tif", "c.TIFF"):
        save_image(tmp_path / "images" / name)
    assert len(_opened(tmp_path)) == 3
    assert _opened(tmp_path).notes() == ()
    for name in ("1.heic", "2.gif", "3.CR2", "4.gif", "notes.md"):
        (tmp_path / "images" / name).write_bytes(b"x")
    (note,) = _opened(tmp_path).notes()
    assert note.startswith("4 files are skipped in ")
    assert "(1.heic, 2.gif, 3.CR2 and 1 more): images must end in .png, " in note
    only = tmp_path / "only"
    only.mkdir()
    (only / "1.heic").write_bytes(b"x")
    with pytest.raises(UserError, match=r"has no images\. It has 1\.heic, which cannot be read: convert"):
        _opened(tmp_path, path=str(only))


@pytest.mark.parametrize(("trigger", "left"), [(None, "no caption"), ("sks", "only the trigger 'sks'")])
def test_empty_captions_are_counted_and_named(tmp_path: Path, trigger: str | None, left: str):
    for name, text in (("a", "a cat"), ("b", " \n"), ("c", "")):
        save_image(tmp_path / "images" / f"{name}.png")
        (tmp_path / "images" / f"{name}.txt").write_text(text)
    source = _opened(tmp_path, trigger=trigger)
    (note,) = source.notes()
    assert note == f"2 captions are empty in {tmp_path / 'images'}, of b.png, c.png: trained with {left}."


def test_a_folder_of_cifar10_batches_is_told_how_it_is_read(tmp_path: Path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "data_batch_1").write_bytes(b"x")
    with pytest.raises(UserError, match=r"python version of CIFAR-10.*data\.kind=cifar10"):
        _opened(tmp_path)


def _with_links_out(tmp_path: Path) -> None:
    save_image(tmp_path / "images" / "a.png", size_px=(8, 8))
    save_image(tmp_path / "pool" / "b.png", size_px=(9, 8))
    save_image(tmp_path / "pool" / "more" / "c.png", size_px=(10, 8))
    (tmp_path / "images" / "more").symlink_to(tmp_path / "pool" / "more")


def _widths(source: Source) -> list[int]:
    return [source.info(index).width_px for index in range(len(source))]


def test_linked_folders_are_skipped_with_a_note_and_followed_where_that_is_asked_for(tmp_path: Path):
    _with_links_out(tmp_path)
    source = _opened(tmp_path)
    assert _widths(source) == [8]
    (note,) = source.notes()
    assert note.startswith("1 linked folder is skipped in ")
    assert note.endswith("(more). To read what links lead to: data.follow_links=true")
    followed = _opened(tmp_path, follow_links=True)
    assert (_widths(followed), followed.notes()) == ([8, 10], ())


def test_linked_images_are_refused_and_read_where_that_is_asked_for(tmp_path: Path):
    _with_links_out(tmp_path)
    (tmp_path / "images" / "b.png").symlink_to(tmp_path / "pool" / "b.png")
    with pytest.raises(UserError, match=r"b\.png leads to .*pool/b\.png, outside of .*images.*data\.follow_links=true"):
        scan(_opened(tmp_path))
    assert _widths(_opened(tmp_path, follow_links=True)) == [8, 9, 10]


def test_what_was_learnt_of_a_link_is_not_recalled_where_links_are_not_followed(tmp_path: Path):
    save_image(tmp_path / "pool" / "a.png")
    os.utime(tmp_path / "pool" / "a.png", (1_000_000_000, 1_000_000_000))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").symlink_to(tmp_path / "pool" / "a.png")
    scan(_opened(tmp_path, follow_links=True))
    with pytest.raises(UserError, match=r"data\.follow_links=true"):
        scan(_opened(tmp_path))


def test_links_in_a_circle_are_followed_once(tmp_path: Path):
    save_image(tmp_path / "images" / "sub" / "a.png")
    (tmp_path / "images" / "sub" / "around").symlink_to("..")
    (tmp_path / "images" / "again").symlink_to("sub")
    assert len(_opened(tmp_path)) == len(_opened(tmp_path, follow_links=True)) == 1


def test_links_to_images_in_the_folder_are_images(tmp_path: Path):
    save_image(tmp_path / "images" / ".pool" / "x.png")
    (tmp_path / "images" / "a.png").symlink_to(".pool/x.png")
    (tmp_path / "images" / "a.txt").symlink_to(".pool/x.txt")
    (tmp_path / "images" / ".pool" / "x.txt").write_text("a harbour")
    source = _opened(tmp_path)
    assert (_captions(source), source.pixels(0).shape) == (["a harbour"], (6, 8, 3))
