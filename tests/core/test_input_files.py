"""Files that others wrote: opened only if they are files, in their folder, of bounded size; and names shown safely."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.core import input_files
from foretune.core.input_files import OutsideFile, RefusedFile, parse_json, read_bytes, read_text, shown, shown_lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "a.txt").write_text("inside")
    (tmp_path / "secret.txt").write_text("outside")
    return tmp_path / "folder"


def test_a_file_is_read_with_and_without_a_folder(folder: Path) -> None:
    assert read_bytes(folder / "a.txt", 6) == read_bytes(folder / "a.txt", 6, within=folder) == b"inside"


def test_the_size_is_a_limit(folder: Path) -> None:
    with pytest.raises(RefusedFile, match=r"a\.txt has 6 B; at most 5 B are read"):
        read_bytes(folder / "a.txt", 5)


def test_links_are_followed_as_far_as_the_folder_goes(folder: Path, tmp_path: Path) -> None:
    (folder / "sub" / "up.txt").symlink_to("../a.txt")
    (folder / "there").symlink_to("sub")
    assert read_bytes(folder / "there" / "up.txt", 99, within=folder) == b"inside"
    (folder / "out.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "gone").symlink_to(tmp_path)
    for path in (folder / "out.txt", folder / "gone" / "secret.txt", folder / ".." / "secret.txt"):
        with pytest.raises(OutsideFile, match="outside of"):
            read_bytes(path, 99, within=folder)
        assert read_bytes(path, 99) == b"outside"


def test_the_folder_itself_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(folder)
    assert read_bytes(tmp_path / "latest" / "a.txt", 99, within=tmp_path / "latest") == b"inside"


def test_absent_files_are_absent(folder: Path) -> None:
    (folder / "broken.txt").symlink_to("nothing")
    for path in (folder / "none.txt", folder / "broken.txt", folder / "none" / "a.txt"):
        with pytest.raises(FileNotFoundError):
            read_bytes(path, 99, within=folder)
        with pytest.raises(FileNotFoundError):
            read_bytes(path, 99)


@pytest.mark.parametrize("within", [True, False])
def test_what_is_not_a_file_is_refused_and_not_waited_for(folder: Path, within: bool) -> None:
    os.mkfifo(folder / "pipe")
    where = folder if within else None
    with pytest.raises(RefusedFile, match="pipe is a named pipe"):
        read_bytes(folder / "pipe", 99, within=where)
    with pytest.raises(RefusedFile, match="sub is a folder"):
        read_bytes(folder / "sub", 99, within=where)
    with pytest.raises(RefusedFile, match="folder is a folder"):
        read_bytes(folder, 99, within=where)
    with pytest.raises(RefusedFile, match="/dev/zero is a device"):
        read_bytes(Path("/dev/zero"), 99)


def swapped(monkeypatch: pytest.MonkeyPatch, swap: Callable[[], object]) -> list[object]:
    """A folder whose file is replaced in the moment after it was looked at, before it is opened."""
    done: list[object] = []
    require_regular = input_files._require_regular

    def look_and_swap(path: Path, found: os.stat_result) -> None:
        require_regular(path, found)
        if not done:
            done.append(True)
            swap()

    monkeypatch.setattr(input_files, "_require_regular", look_and_swap)
    return done


def test_a_file_that_becomes_a_link_in_between_is_not_followed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap() -> None:
        (folder / "a.txt").unlink()
        (folder / "a.txt").symlink_to(tmp_path / "secret.txt")

    done = swapped(monkeypatch, swap)
    with pytest.raises(OutsideFile):
        read_bytes(folder / "a.txt", 99, within=folder)
    assert done


@pytest.mark.parametrize("within", [True, False])
def test_a_file_that_becomes_a_pipe_in_between_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, within: bool
) -> None:
    def swap() -> None:
        (folder / "a.txt").unlink()
        os.mkfifo(folder / "a.txt")

    done = swapped(monkeypatch, swap)
    with pytest.raises(RefusedFile, match="named pipe"):
        read_bytes(folder / "a.txt", 99, within=folder if within else None)
    assert done


def test_a_file_that_is_replaced_by_a_larger_one_in_between_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = swapped(monkeypatch, lambda: (folder / "a.txt").write_text("x" * 100))
    with pytest.raises(RefusedFile, match="at most 99 B are read"):
        read_bytes(folder / "a.txt", 99, within=folder)
    assert done


def num_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="what is open is listed there")
def test_no_descriptor_is_left_open(folder: Path, tmp_path: Path) -> None:
    (folder / "out.txt").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(folder / "pipe")
    before = num_descriptors()
    for name in ("a.txt", "out.txt", "pipe", "none.txt", "sub/none.txt") * 20:
        for most_bytes in (1, 99):
            try:
                read_bytes(folder / name, most_bytes, within=folder)
            except (RefusedFile, FileNotFoundError):
                continue
    assert num_descriptors() == before


def test_without_opening_by_parts_links_out_are_refused_too(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "_OPENS_BY_PARTS", False)
    (folder / "out.txt").symlink_to(tmp_path / "secret.txt")
    assert read_bytes(folder / "a.txt", 99, within=folder) == b"inside"
    with pytest.raises(OutsideFile):
        read_bytes(folder / "out.txt", 99, within=folder)


def test_text_is_utf8_with_any_ends_of_lines(folder: Path) -> None:
    (folder / "a.txt").write_bytes("\ufeffa\r\nb\rc\n".encode())
    assert read_text(folder / "a.txt", 99) == "a\nb\nc\n"
    (folder / "a.txt").write_bytes(b"a\xff")
    with pytest.raises(RefusedFile, match=r"a\.txt is not text in UTF-8 \(invalid start byte at byte 1\)"):
        read_text(folder / "a.txt", 99)


def test_json_that_is_nested_without_end_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.png", "a.png"),
        ("Café 港.png", "Café 港.png"),
        ("a\nb\r\t\0.png", "a\\nb\\r\\t\\x00.png"),
        ("\x1b[31m\x9b", "\\x1b[31m\\x9b"),
        (os.fsdecode(b"\xff\x80.png"), "\\xff\\x80.png"),
        ("\ud800", "\\ud800"),
        ("\u202egnp.exe\u2028", "\\u202egnp.exe\\u2028"),
    ],
)
def test_names_are_shown_without_what_would_move_the_cursor(name: Any, text: str) -> None:
    assert shown(name) == text
    shown(name).encode("utf-8")


def test_lines_stay_lines() -> None:
    assert shown_lines("a\n\tb\x1b[2J\ud800") == "a\n\tb\\x1b[2J\\ud800"


def test_a_refused_file_says_its_name_safely(folder: Path) -> None:
    (folder / "a\nb").mkdir()
    with pytest.raises(RefusedFile) as refused:
        read_bytes(folder / "a\nb", 9)
    assert "a\\nb is a folder" in str(refused.value)
