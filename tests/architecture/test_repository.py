import subprocess
from pathlib import Path

import pytest

from tests.architecture.repository import MOST_FILE_BYTES, large_files, machine_places, repository_files
from tests.architecture.source_tree import REPOSITORY


@pytest.fixture(scope="module")
def files() -> list[Path]:
    found = repository_files(REPOSITORY)
    if not found:
        pytest.skip("not in a git work tree")
    return found


def test_no_file_names_a_place_on_one_machine(files: list[Path]) -> None:
    assert machine_places(files) == []


def test_no_file_is_large(files: list[Path]) -> None:
    assert large_files(files) == []


@pytest.mark.parametrize(
    "text",
    [
        "cd /work/" + "main",
        '"/root' + '/.cache"',
        "--find-links=/opt/" + "wheels",
        "--index-url https://py" + "pi.org/simple",
        "https://files.python" + "hosted.org/packages",
        "https://download.py" + "torch.org/whl/cpu",
    ],
)
def test_control_machine_place(tmp_path: Path, text: str) -> None:
    planted = tmp_path / "a.md"
    planted.write_bytes(b"\xff binary\n" + text.encode() + b"\n")
    (violation,) = machine_places([planted])
    assert violation.startswith(f"{planted}:2: ")


def test_control_innocent_places(tmp_path: Path) -> None:
    innocent = tmp_path / "a.md"
    innocent.write_text("https://example.com/root/a\n./work/main\nframework/maintained\n/tmp/run\n")
    assert machine_places([innocent]) == []


def test_control_large_file(tmp_path: Path) -> None:
    for name, size_bytes in (("fits", MOST_FILE_BYTES), ("large", MOST_FILE_BYTES + 1)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size_bytes)
    (violation,) = large_files(sorted(tmp_path.iterdir()))
    assert violation.startswith(str(tmp_path / "large"))


def test_control_files_outside_git_are_unknown_and_ignored_ones_left_out(tmp_path: Path) -> None:
    assert repository_files(tmp_path) is None
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("ignored\n")
    for name in ("ignored", "kept"):
        (tmp_path / name).write_text("")
    found = repository_files(tmp_path)
    assert found is not None
    assert {path.name for path in found} == {".gitignore", "kept"}
