"""What a person sees while a run goes on: a live line in a terminal, a line now and then in a file."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from foretune.cli.progress import ProgressObserver
from foretune.core.observer import StepReport
from foretune.core.values import Plan
from tests.reports.whole_runs import plan


def report(step: int, step_s: float = 0.5, loss: float = 0.25) -> StepReport:
    return StepReport(step=step, num_steps=100, loss=loss, grad_norm=None, lr=1e-4, step_s=step_s, samples_per_step=8)


def watched(console: Console, clock: list[float]) -> ProgressObserver:
    observer = ProgressObserver(console, now=lambda: clock[0])
    observer._peak_bytes = lambda: 3 * 2**29
    return observer


@pytest.fixture
def clock() -> list[float]:
    """The time in seconds, in the only element; tests set it forward."""
    return [100.0]


def test_a_file_gets_a_line_every_few_seconds_and_the_last_one(clock: list[float]) -> None:
    file = io.StringIO()
    with watched(Console(file=file, width=200), clock) as observer:
        for step in range(100):
            clock[0] += 0.5
            observer.stepped(report(step))
    lines = file.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[0] == "training 1/100  16 samples/s  loss 0.2500  50 s left  peak 1.5 GiB"
    assert lines[-1] == "training 100/100  16 samples/s  loss 0.2500  done"
    assert "\x1b" not in file.getvalue()


def test_where_nothing_changes_a_file_gets_a_line_a_minute(clock: list[float]) -> None:
    file = io.StringIO()
    observer = watched(Console(file=file, width=200), clock)
    for _ in range(240):
        clock[0] += 0.5
        observer.preparing("starting", 0, 1)
    assert file.getvalue().splitlines() == ["starting 0/1"] * 2
    clock[0] += 5
    observer.preparing("steps", 1, 8)
    assert file.getvalue().splitlines()[-1] == "steps 1/8"


def test_what_is_not_counted_has_no_numbers_and_no_bar(clock: list[float]) -> None:
    file = io.StringIO()
    watched(Console(file=file, width=200), clock).preparing("compiling (for 45 s so far)", 0, 0)
    assert file.getvalue() == "compiling (for 45 s so far)\n"
    file = io.StringIO()
    with watched(Console(file=file, width=200, force_terminal=True), clock) as observer:
        observer.preparing("compiling (for 45 s so far)", 0, 0)
    assert "compiling (for 45 s so far)" in file.getvalue()
    assert "0/0" not in file.getvalue()


def test_time_left_follows_slowly(clock: list[float]) -> None:
    """One slow step among many must not make it jump: 99 steps at 0.5 s, then one that took 10 s."""
    file = io.StringIO()
    observer = watched(Console(file=file, width=200), clock)
    for step in range(50):
        observer.stepped(report(step))
    clock[0] += 10
    observer.stepped(report(50, step_s=10.5))
    assert "1 min 14 s left" in file.getvalue().splitlines()[-1]  # 49 steps of 0.5 + 0.1 * 10 s


def test_the_first_step_does_not_weigh_on_the_speed(clock: list[float]) -> None:
    """It allocates and tunes: ten times as slow as the rest, it must be forgotten at the second."""
    file = io.StringIO()
    observer = watched(Console(file=file, width=200), clock)
    for step, step_s in enumerate([10.0, 1.0, 1.0]):
        clock[0] += 100
        observer.stepped(report(step, step_s=step_s))
    speeds = [line.split("  ")[1] for line in file.getvalue().splitlines()]
    assert speeds == ["1.25 s/sample", "8 samples/s", "8 samples/s"]


def planned(step_s: float | None) -> Plan:
    """A step of so many seconds, and 1.5 GiB."""
    found = plan(3 * 2**29, step_s=step_s or 1.0)
    return found if step_s is not None else found.model_copy(update={"time": None})


def test_planned_figures_stand_beside_measured_ones(clock: list[float]) -> None:
    file = io.StringIO()
    observer = watched(Console(file=file, width=80), clock)
    observer.planned(planned(0.4))
    for step in range(2):
        clock[0] += 10
        observer.stepped(report(step))
    assert file.getvalue().splitlines() == [
        "training 1/100  16 samples/s (20 planned)  loss 0.2500  50 s left  peak 1.5 GiB (1.5 GiB planned)",
        "training 2/100  16 samples/s (20 planned)  loss 0.2500  49 s left",
    ]


def test_both_speeds_have_one_unit(clock: list[float]) -> None:
    file = io.StringIO()
    observer = watched(Console(file=file, width=80), clock)
    observer.planned(planned(4.0))
    observer.stepped(report(0, step_s=16.0))
    assert "2 s/sample (0.5 planned)" in file.getvalue()


def test_a_plan_without_a_time_has_no_planned_speed(clock: list[float]) -> None:
    file = io.StringIO()
    observer = watched(Console(file=file, width=80), clock)
    observer.planned(planned(None))
    observer.stepped(report(0))
    assert "16 samples/s  loss" in file.getvalue()


def test_a_narrow_terminal_shows_everything_in_two_lines(clock: list[float]) -> None:
    file = io.StringIO()
    with watched(Console(file=file, force_terminal=True, width=80, color_system=None), clock) as observer:
        observer.planned(planned(0.4))
        observer.stepped(report(1))
    shown = [line for line in re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", file.getvalue()).splitlines() if line.strip()]
    assert shown[0].split() == ["training", "─" * 24, "2/100", "49", "s", "left"]
    assert shown[1].strip() == "16 samples/s (20 planned)  loss 0.2500  peak 1.5 GiB (1.5 GiB planned)"
    assert max(map(len, shown)) <= 80


def test_a_terminal_gets_one_live_line(clock: list[float]) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=160, color_system=None)
    with watched(console, clock) as observer:
        observer.preparing("encoding images", 3, 9)
        observer.stepped(report(0))
        observer.message("Run directory: [runs]/x")
        clock[0] += 1
        observer.stepped(report(1))
        clock[0] += 0.1
        observer.stepped(report(2))
    shown = file.getvalue()
    assert "encoding images" in shown
    assert re.search(r"training .* 2/100 +49 s left  16 samples/s  loss 0\.2500  peak 1\.5 GiB", shown)
    assert " 3/100 " not in shown, "drawn once a second at most"
    # A path in brackets is a path, not a colour.
    assert "Run directory: [runs]/x" in shown


@pytest.mark.parametrize(("encoding", "bar"), [("utf-8", "━" * 12 + "─" * 12), ("ascii", "#" * 12 + "." * 12)])
def test_the_bar_needs_neither_colours_nor_unicode(encoding: str, bar: str, clock: list[float]) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with watched(Console(file=file, force_terminal=True, width=160, color_system=None), clock) as observer:
        observer.stepped(report(49))
    file.seek(0)
    assert f"training {bar} 50/100" in file.read()


def test_validation_is_said_in_one_line(clock: list[float]) -> None:
    file = io.StringIO()
    observer = watched(Console(file=file, width=200), clock)
    observer.validated(50, 0.125, (Path("samples/a.png"), Path("samples/b.png")))
    observer.validated(60, None, ())
    observer.validated(70, 0.5, ())
    observer.warning("something")
    assert file.getvalue().splitlines() == [
        "After step 50: held-out loss 0.1250, 2 samples in samples",
        "After step 70: held-out loss 0.5000",
        "Warning: something",
    ]
