"""A memo holds until a file changes, and its loss does no harm."""

import os
from pathlib import Path

from foretune.data.memo import Memo, stamp


def _old_file(path: Path, content: bytes, age_s: int = 100) -> Path:
    path.write_bytes(content)
    then = path.stat().st_mtime - age_s
    os.utime(path, (then, then))
    return path


def test_a_value_is_recalled_until_the_file_changes(tmp_path: Path):
    file = _old_file(tmp_path / "a", b"first")
    memo = Memo(tmp_path / "memo.json")
    memo.store("a", stamp([file]), [1, "x"])
    memo.save()
    assert Memo(tmp_path / "memo.json").recall("a", stamp([file])) == [1, "x"]
    _old_file(file, b"other", age_s=50)
    assert Memo(tmp_path / "memo.json").recall("a", stamp([file])) is None


def test_a_file_that_was_just_written_is_not_trusted(tmp_path: Path):
    file = tmp_path / "a"
    file.write_bytes(b"fresh")
    memo = Memo(tmp_path / "memo.json")
    memo.store("a", stamp([file]), 1)
    assert memo.recall("a", stamp([file])) is None


def test_a_damaged_memo_is_an_empty_one(tmp_path: Path):
    file = _old_file(tmp_path / "a", b"x")
    for content in ("{", "[]", '{"version": 0, "entries": {"a": ["", 1]}}', '{"version": 1}'):
        (tmp_path / "memo.json").write_text(content)
        assert Memo(tmp_path / "memo.json").recall("a", stamp([file])) is None


def test_where_nothing_can_be_written_a_memo_only_forgets(tmp_path: Path):
    file = _old_file(tmp_path / "a", b"x")
    memo = Memo(file / "memo.json")
    memo.store("a", stamp([file]), 1)
    memo.save()
    assert memo.recall("a", stamp([file])) == 1
    assert Memo(file / "memo.json").recall("a", stamp([file])) is None
