"""Runs are found and read wherever they lie."""

import math
from pathlib import Path

import pytest

from foretune.analyse.run_data import read_run, runs_in
from foretune.core.errors import UserError
from foretune.record.events import EventLog
from tests.analyse.made_runs import ENVIRONMENT, asked, make_repeats, make_run


def test_a_run_is_read_whole(tmp_path: Path) -> None:
    path = make_run(tmp_path / "one", [0.3, 0.1, 0.2], experiment=asked(train={"batch_size": 3}))
    (run,) = runs_in(path)
    assert run.run_id == "one"
    assert run.step_times_s == (0.3, 0.1, 0.2)
    assert run.losses == (1.0, 1 / 2, 1 / 3)
    assert run.phases_s[1] == {"forward": 0.1}
    assert run.environment == ENVIRONMENT
    assert run.samples_per_step == 3
    assert run.has_finished
    assert run.started_s is not None


def test_the_last_entry_of_a_step_counts(tmp_path: Path) -> None:
    """After a resume, steps since the last checkpoint are in the log twice."""
    path = make_run(tmp_path / "one", [0.3, 0.1, 0.2])
    events = EventLog(path / "events.jsonl")
    events.append("step", step=1, loss=float("nan"), step_s=0.5)
    events.close()
    run = read_run(path)
    assert run.step_times_s == (0.3, 0.5, 0.2)
    assert math.isnan(run.losses[1])
    assert run.phases_s[1] == {}


def test_a_killed_run_has_no_record_and_says_so(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "one", [0.1], status=None))
    assert run.record is None
    assert run.question_hash is None
    assert run.end == "stopped without warning"
    assert not run.has_finished


def test_a_bench_is_its_repeats_alone(tmp_path: Path) -> None:
    bench = tmp_path / "benches" / "exp" / "id"
    make_repeats(bench / "runs", [0.1, 0.1])
    make_repeats(bench / "uncompiled" / "runs", [0.2])
    (bench / "runs" / "latest").symlink_to("run-01")
    (bench / "bench.json").write_text("{}")
    assert [run.run_id for run in runs_in(bench)] == ["run-00", "run-01"]
    assert len(runs_in(tmp_path / "benches")) == 2
    assert [run.run_id for run in runs_in(bench / "runs" / "latest")] == ["run-01"]


def test_a_folder_of_runs_in_the_order_they_started(tmp_path: Path) -> None:
    make_run(tmp_path / "z", [0.1])
    make_run(tmp_path / "a", [0.1])
    assert [run.run_id for run in runs_in(tmp_path)] == ["z", "a"]


def test_where_there_is_no_run_the_error_says_what_one_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no run in"):
        runs_in(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        runs_in(tmp_path / "nothing")


@pytest.mark.parametrize(
    "line", ["{cut", '{"kind": "step", "step": 3}', '{"kind": "step", "step": 3, "step_s": 0.0}', "7"]
)
def test_a_damaged_log_is_said_with_what_to_type(tmp_path: Path, line: str) -> None:
    run = make_run(tmp_path / "a", [0.1] * 10)
    log = run / "events.jsonl"
    log.write_text(log.read_text() + line + "\n")
    with pytest.raises(UserError, match=r"events\.jsonl is damaged.*foretune check"):
        runs_in(tmp_path)


def test_a_file_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(UserError, match=r"is a file\. Name the run or bench directory"):
        runs_in(tmp_path / "bench.json")
