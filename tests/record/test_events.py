"""events.jsonl: append-only, whole lines, and a kill loses at most the last."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from foretune.record.events import EventLog, read_events
from tests.waiting import HANG_S

KILLED = """
import os, sys
from pathlib import Path
from foretune.record.events import EventLog
log = EventLog(Path(sys.argv[1]))
for step in range(100):
    log.append("step", step=step)
log.flush()
for step in range(100, 10_000):
    log.append("step", step=step, filler="x" * 50)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def write(path: Path, *kinds: str) -> None:
    log = EventLog(path)
    for kind in kinds:
        log.append(kind)
    log.close()


def kinds(path: Path) -> list[str]:
    return [event["kind"] for event in read_events(path)]


def test_events_come_back_in_order_with_their_time(path: Path) -> None:
    log = EventLog(path)
    log.append("started", first_step=0)
    log.append("step", step=0, loss=0.5, step_s=1.25)
    log.close()
    events = list(read_events(path))
    assert [{key: value for key, value in event.items() if key != "time_s"} for event in events] == [
        {"kind": "started", "first_step": 0},
        {"kind": "step", "step": 0, "loss": 0.5, "step_s": 1.25},
    ]
    assert 1.6e9 < events[0]["time_s"] <= events[1]["time_s"]


def test_a_second_log_goes_on_where_the_first_stopped(path: Path) -> None:
    write(path, "a", "b")
    write(path, "c")
    assert kinds(path) == ["a", "b", "c"]


@pytest.mark.parametrize("torn", ["{", '{"time_s": 1, "kind": "st', '{"kind": "whole but for its end"}', "\x00\x00"])
def test_a_torn_last_line_is_left_out_and_the_log_goes_on(path: Path, torn: str) -> None:
    write(path, "a", "b")
    with path.open("a") as file:
        file.write(torn)
    assert kinds(path) == ["a", "b"]
    write(path, "c")
    assert kinds(path) == ["a", "b", "c"]
    assert len(path.read_text().splitlines()) == 3


def test_a_file_that_is_all_torn(path: Path) -> None:
    path.write_text('{"kind"')
    write(path, "a")
    assert kinds(path) == ["a"]


def test_an_empty_log(path: Path) -> None:
    write(path)
    assert kinds(path) == []


def test_what_was_flushed_survives_a_kill(path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=HANG_S)
    steps = [event["step"] for event in read_events(path)]
    assert len(steps) >= 100
    assert steps == list(range(len(steps)))
    write(path, "resumed")
    assert kinds(path)[-1] == "resumed"


def test_lines_reach_the_file_within_a_second(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("foretune.record.events.time.monotonic", lambda: now_s)
    log = EventLog(path)
    log.append("a")
    assert kinds(path) == []
    now_s = 1.5
    log.append("b")
    assert kinds(path) == ["a", "b"]
    log.close()


def test_numbers_that_are_not_finite_are_json_for_every_reader(path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    log = EventLog(path)
    log.append("step", loss=math.nan, norms=(math.inf, 1.0), inner={"x": -math.inf})
    log.close()
    event = json.loads(path.read_text(), parse_constant=refuse)
    assert math.isnan(float(event["loss"]))
    assert [float(norm) for norm in event["norms"]] == [math.inf, 1.0]
    assert float(event["inner"]["x"]) == -math.inf
