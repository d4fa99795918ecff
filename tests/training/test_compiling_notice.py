"""A run that compiles reports so, and for how long so far."""

import threading
from pathlib import Path
from typing import Any

import pytest

from foretune.core.observer import Observer
from foretune.training.compiling_notice import compiling_notice, notice_text
from tests.training.short_runs import Recording, short_run


class Waited(Observer):
    """Lets the block go on when it was notified so often."""

    def __init__(self, times: int) -> None:
        self.texts: list[tuple[str, int, int]] = []
        self.times, self.is_enough = times, threading.Event()

    def preparing(self, what: str, done: int, total: int) -> None:
        self.texts.append((what, done, total))
        if len(self.texts) == self.times:
            self.is_enough.set()


def test_it_is_reported_at_once_and_ends_with_the_block() -> None:
    observer = Waited(1)
    with compiling_notice(observer, "compiling"):
        assert observer.is_enough.wait(60)
    assert observer.texts == [("compiling", 0, 0)], "a total of 0: nothing is counted"
    assert not any(thread.name == "compiling notice" for thread in threading.enumerate())


def test_it_says_for_how_long() -> None:
    assert notice_text("compiling", 0.2) == "compiling"
    assert notice_text("compiling", 75.0) == "compiling (for 1 min 15 s so far)"


@pytest.mark.parametrize("mode", ["off", "regional"])
def test_the_first_step_of_a_run_that_compiles_reports_it(
    tiny_pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    # Compiling for real takes a minute.
    monkeypatch.setattr("foretune.step.levers.applying.apply_compile", lambda blocks: None)
    observer = Recording()
    short_run(tiny_pipeline("ddpm"), tmp_path, observer=observer, train={"steps": 2}, levers={"compile": mode})
    heard = [what for what, _, total in observer.of("preparing") if total == 0]
    words = ["compiling in the first validation", "compiling in the first step"]
    # A busy machine has time for a second report.
    assert list(dict.fromkeys(what.partition(" (")[0] for what in heard)) == ([] if mode == "off" else words)
