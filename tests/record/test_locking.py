"""One process a run."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from foretune.core.errors import UserError
from foretune.record.locking import locked

HOLDS = """
import signal, sys
from pathlib import Path
from foretune.record.locking import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    signal.pause()
"""


def test_a_lock_is_held_and_given_back(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path / "run.lock"):
            pass


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(UserError, match=r"is being written by another process\. Wait for it"), locked(path):
                pytest.fail("the lock was given twice")
        finally:
            holder.kill()
    with locked(path):
        pass


def test_a_lock_is_given_back_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locked(tmp_path / "run.lock"):
        raise RuntimeError
    with locked(tmp_path / "run.lock"):
        pass


def test_a_file_system_without_locks_does_not_stop_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with locked(tmp_path / "run.lock"):
        pass
