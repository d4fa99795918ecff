"""A process that makes no progress says what it was doing."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from foretune.training.watchdog import STACKS, Watchdog, stacks_text
from tests.waiting import HANG_S, waited_until

# A process that asks for a save at SIGTERM, as a run does, and hangs or is slow in a step.
_PROGRAM = """
import signal, sys, time
from pathlib import Path
from foretune.training.watchdog import Watchdog

def the_call_that_hangs():
    while True:
        pass

folder = Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda number, frame: (folder / "asked").touch())
watchdog = Watchdog(folder, 1, 3.0)
watchdog.before_step(0)
if sys.argv[2] == "hangs":
    the_call_that_hangs()
while not (folder / "stacks" / "process-1.txt").exists():
    time.sleep(0.01)
watchdog.after_step(0)
(folder / "goes-on").touch()
the_call_that_hangs()
"""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_steps_that_end_in_time_leave_nothing(tmp_path: Path) -> None:
    """The thread looks all the time, because the limit is short by the real clock; by the run's clock it is not."""
    clock = Clock()
    watchdog = Watchdog(tmp_path, 0, 0.1, now=clock)
    watchdog.before_step(0)
    for step in range(50):
        clock.now_s += 0.07
        watchdog.after_step(step)
        time.sleep(0.002)
    watchdog.close()
    assert not (tmp_path / STACKS).exists()
    assert stacks_text(tmp_path) == ""


def test_the_stacks_are_written_before_the_others_give_up(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / STACKS / "process-3.txt"
    path.parent.mkdir()
    path.write_text("of an earlier start")
    watchdog = Watchdog(tmp_path, 3, 0.1, now=clock)
    watchdog.before_step(0)
    assert not path.exists()
    clock.now_s = 1.0
    waited_until(lambda: path.exists() and "test_watchdog" in path.read_text())
    watchdog.after_step(0)
    watchdog.close()
    text = path.read_text()
    assert text.startswith("No step ended for 0.08 s.")
    assert "test_the_stacks_are_written_before_the_others_give_up" in text, "the main thread's stack"
    assert str(tmp_path / STACKS) in stacks_text(tmp_path)
    assert not [one for one in threading.enumerate() if one.name == "foretune-watchdog"]


def test_without_a_step_nothing_watches(tmp_path: Path) -> None:
    watchdog = Watchdog(tmp_path, 0, 0.1)
    assert not [one for one in threading.enumerate() if one.name == "foretune-watchdog"]
    watchdog.close()


def test_a_disk_that_is_full_is_not_the_end_of_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    watchdog = Watchdog(tmp_path / "gone", 0, 0.1, now=clock)
    watchdog.before_step(0)
    clock.now_s = 1.0
    shown: list[str] = []

    def is_shown() -> bool:
        shown.append(capfd.readouterr().err)
        return "test_a_disk_that_is_full" in "".join(shown)

    waited_until(is_shown)
    watchdog.after_step(0)
    watchdog.close()


@pytest.mark.parametrize("how", ["hangs", "is slow"])
def test_a_process_that_hangs_can_be_ended_and_a_slow_one_is_asked(how: str, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(tmp_path), how])
    path = tmp_path / STACKS / "process-1.txt"
    try:
        if how == "hangs":
            waited_until(lambda: path.exists() and "the_call_that_hangs" in path.read_text())
            process.terminate()
            assert process.wait(HANG_S) == -signal.SIGTERM
            return
        waited_until((tmp_path / "goes-on").exists)
        process.terminate()
        waited_until((tmp_path / "asked").exists)
        assert process.poll() is None, "its own handler is back"
    finally:
        process.kill()
        process.wait()
