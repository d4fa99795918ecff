"""Run directories that somebody else made: a report, a check and a resume read what lies in them, and nothing else.

Whoever waits for a pipe here waits for ever; so a failure of these tests can be a test that does not end.
"""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.analyse.run_data import gather
from foretune.analyse.run_report import run_report
from foretune.core.errors import UserError
from foretune.record.checking import check_run
from foretune.record.run_directory import RunDirectory
from foretune.reports.run_page import report_page
from tests.reports.whole_runs import picture, whole_run

SECRET = "canary outside of the run"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text(SECRET)
    whole_run(tmp_path / "runs" / "a", num_steps=4)
    return tmp_path / "runs" / "a"


def page(run: Path) -> str:
    return report_page(run_report(gather([run]), run.parent), title="runs")


def replace_by_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)


def replace_by_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.parents[2] / "secret.txt")


@pytest.mark.parametrize("replace", [replace_by_pipe, replace_by_link])
@pytest.mark.parametrize("name", ["record.json", "plan.json", "events.jsonl", "environment.json"])
def test_what_is_no_file_of_the_run_is_named(run: Path, name: str, replace: Callable[[Path], None]) -> None:
    replace(run / name)
    try:
        found = "; ".join(check_run(run).faults)
    except UserError as error:
        found = str(error)
    assert name in found
    assert "is a named pipe" in found or "outside of" in found
    assert SECRET not in found


@pytest.mark.parametrize("name", ["record.json", "events.jsonl", "quality/evaluation.json"])
def test_a_report_is_refused_by_the_file_s_name(run: Path, name: str) -> None:
    replace_by_pipe(run / name)
    with pytest.raises(UserError, match=rf"{name} is a named pipe"):
        page(run)


def test_pictures_that_are_pipes_or_links_out_are_left_out(run: Path, tmp_path: Path) -> None:
    private = picture(shade=77)
    (tmp_path / "private.png").write_bytes(private)
    for path in (*run.glob("samples/*.png"), *run.glob("quality/**/*.png")):
        path.unlink()
    (run / "samples").mkdir(exist_ok=True)
    os.mkfifo(run / "samples" / "step-000001-0.png")
    (run / "samples" / "step-000002-1.png").symlink_to(tmp_path / "private.png")
    (run / "samples" / "step-000003-2.png").write_bytes(picture(shade=33))
    assert page(run).count("data:image/png") == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"asked: " + b"[" * 400_000, "nested too deeply"),
        (b"asked:\n  " + b"- " * 400_000, "nested too deeply"),
        (
            b"a0: &a0 [x]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 60)),
            "aliases",
        ),
    ],
)
def test_an_experiment_that_would_end_the_reader_is_named(run: Path, content: bytes, reason: str) -> None:
    (run / "experiment.yaml").write_bytes(content)
    with pytest.raises(UserError, match=rf"experiment\.yaml .*({reason})"):
        page(run)


@pytest.mark.parametrize(
    "line",
    [b"[" * 200_000, b'{"kind": ' + b"[" * 200_000, b"\xff", b"3", b'"step"', b"[]", b'{"kind": "step", "step": []}'],
)
def test_events_that_are_none_are_named(run: Path, line: bytes) -> None:
    with (run / "events.jsonl").open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(UserError, match=r"events\.jsonl is damaged"):
        page(run)
    num_lines = len((run / "events.jsonl").read_bytes().splitlines())
    assert any(f"line {num_lines}: no" in fault for fault in check_run(run).faults)


def test_an_event_of_an_unheard_of_kind_is_a_fault_and_no_crash(run: Path) -> None:
    with (run / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": [1], "time_s": 1}\n')
    assert any("known kind" in fault for fault in check_run(run).faults)


def test_a_log_that_is_one_line_without_end_is_named(run: Path) -> None:
    with (run / "events.jsonl").open("r+b") as file:
        file.truncate(2**31)
    with pytest.raises(UserError, match=r"events\.jsonl is damaged .*a line has more than 16 MiB"):
        page(run)


def test_a_log_beyond_all_measure_is_named(run: Path) -> None:
    with (run / "events.jsonl").open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match=r"events\.jsonl has 1024\.00 GiB"):
        page(run)


def test_a_trace_that_unpacks_to_gigabytes_is_said_in_the_report(run: Path) -> None:
    (run / "profile").mkdir()
    with gzip.open(run / "profile" / "x.pt.trace.json.gz", "wb", compresslevel=9) as file:
        for _ in range(300):
            file.write(bytes(2**20))
    assert "x.pt.trace.json.gz unpacks to more than 95.37 MiB" in page(run)


def test_a_value_nested_without_end_is_named(run: Path) -> None:
    (run / "record.json").write_text('{"format": ' + "[" * 200_000)
    with pytest.raises(UserError, match=r"record\.json: This RunRecord is not JSON: it is nested too deeply"):
        page(run)


@pytest.mark.parametrize("name", ["events.jsonl", "run.lock", "record.json"])
@pytest.mark.parametrize("replace", [replace_by_pipe, replace_by_link])
def test_nothing_is_written_to_a_run_whose_files_lead_elsewhere(
    run: Path, name: str, replace: Callable[[Path], None]
) -> None:
    RunDirectory.open(run).require_own_files()
    replace(run / name)
    with pytest.raises(UserError, match=rf"{name} is a link or a pipe, so nothing is written here"):
        RunDirectory.open(run).require_own_files()


def test_checkpoints_may_lie_on_another_disk(run: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (run / "on-another-disk").symlink_to(tmp_path / "disk")
    RunDirectory.open(run).require_own_files()


def test_whole_runs_are_read(run: Path) -> None:
    assert json.loads((run / "record.json").read_text())["format"] == "RunRecord"
    assert "<html" in page(run)
