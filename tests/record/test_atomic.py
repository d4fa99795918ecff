"""A file is old or new, never half, whatever happens to the writer."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from foretune.record.atomic import sync_directory, write_text

# Writes a file and stands still at the named moment, so that it can be killed there.
STANDS_STILL = """
import os, signal, sys
from pathlib import Path
from foretune.record import atomic

def stand_still(*_):
    print("there", flush=True)
    signal.pause()

moment = sys.argv[2]
if moment == "before the sync":
    os.fsync = stand_still
elif moment == "before the rename":
    Path.replace = stand_still
atomic.write_text(Path(sys.argv[1]), "new " * 100_000)
print("done", flush=True)
"""


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_text(path, "first\n")
    assert path.read_bytes() == b"first\n"
    write_text(path, "zweite Fassung: é\n")
    assert path.read_text(encoding="utf-8") == "zweite Fassung: é\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("moment", ["before the sync", "before the rename"])
def test_a_killed_writer_leaves_the_old_file(tmp_path: Path, moment: str) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")
    command = [sys.executable, "-c", STANDS_STILL, str(path), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        reached = writer.stdout.readline()
        writer.kill()
        assert writer.wait() == -signal.SIGKILL
    assert reached == "there\n"
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("broken", ["os.fsync", "pathlib.Path.replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(broken, fail)
        with pytest.raises(OSError, match="No space left"):
            write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments: list[str] = []
    sync, replace = os.fsync, Path.replace

    def watched_sync(descriptor: int) -> None:
        moments.append("sync a folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync a file")
        sync(descriptor)

    def watched_replace(self: Path, target: Path) -> Path:
        moments.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    write_text(tmp_path / "record.json", "new")
    assert moments == ["sync a file", "rename", "sync a folder"]


def test_a_directory_can_be_synced(tmp_path: Path) -> None:
    sync_directory(tmp_path)
