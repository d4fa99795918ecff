"""Files that appear once they are finished."""

from pathlib import Path

import pytest

from foretune.core.output_files import beside, move


def write(target: Path, text: str = "finished") -> None:
    with beside(target) as unfinished:
        unfinished.mkdir()
        (unfinished / "model.txt").write_text(text)
        (unfinished / "part").mkdir()
        move(unfinished, target)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_when_it_is_finished(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "export")
    assert names(tmp_path / "deep" / "export") == ["model.txt", "part"]
    assert names(tmp_path / "deep") == ["export"]


def test_a_folder_that_exists_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "own", target_is_directory=True)
    write(tmp_path / "link")
    assert names(tmp_path / "own") == ["model.txt", "part"]
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write(Path())
    assert names(tmp_path / "here") == ["model.txt", "part"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(target: Path) -> None:
        with beside(target) as unfinished:
            unfinished.mkdir()
            (unfinished / "model.txt").write_text("half")
            raise RuntimeError

    (tmp_path / "there").mkdir()
    for target in (tmp_path / "there", tmp_path / "new"):
        with pytest.raises(RuntimeError):
            fail(target)
    assert names(tmp_path) == ["there"]
    assert names(tmp_path / "there") == []


def test_a_file_is_put_in_place(tmp_path: Path) -> None:
    target = tmp_path / "adapter.safetensors"
    with beside(target) as unfinished:
        assert unfinished.name == target.name
        unfinished.write_text("finished")
        move(unfinished, target)
    assert names(tmp_path) == [target.name]
