"""`foretune watch` as it is typed, and the looks behind it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.analyse.watching.watcher import Watcher
from foretune.api.watch import looks
from foretune.executors.outcome import TaskOutcome
from foretune.executors.task import Task
from foretune.executors.task_files import write_outcome, write_task
from tests.analyse.made_runs import make_run
from tests.cli.conftest import Foretune


def test_once_prints_what_is_there_and_ends(foretune: Foretune, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", [0.1])
    write_task(Task(name="t", worker="foretune.sweeps.trial_worker", request={}, folder=tmp_path / "runs" / "t"))
    answer = foretune("watch", "runs", "--once", "--html", "watch.html")
    assert answer.returncode == 0
    assert answer.stdout.startswith("runs: 1 of 2 runs ended (1 finished), 1 waiting\n")
    assert "Waiting: t" in answer.stdout
    assert "Written: watch.html" in answer.stderr


def test_a_folder_that_is_over_is_printed_and_the_command_ends(foretune: Foretune, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", [0.1], status="failed")
    answer = foretune("watch", "runs")
    assert answer.returncode == 0
    assert answer.stdout.count("1 of 1 run ended (1 failed)") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere", "nowhere does not exist"), ("file", "file is a file"), ("empty", "There is no run in empty")],
)
def test_what_is_no_folder_of_runs_is_refused(name: str, message: str, foretune: Foretune, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    answer = foretune("watch", name)
    assert answer.returncode == 2
    assert message in answer.stderr


def test_it_looks_until_nothing_waits(tmp_path: Path) -> None:
    trials = tmp_path / "trials"
    for name in ("a", "b"):
        write_task(Task(name=name, worker="foretune.sweeps.trial_worker", request={}, folder=trials / name))
    page = tmp_path / "watch.html"
    pages: list[str] = []

    def passes(seconds: float) -> None:
        assert seconds == 5.0
        pages.append(page.read_text())
        write_outcome(trials / "ab"[len(pages) - 1], TaskOutcome(kind="done", seconds=1.0))

    states = list(looks(Watcher(tmp_path), 5.0, page, passes))
    assert [len(state.found.waiting) for state in states] == [2, 1, 0]
    assert all('<meta http-equiv="refresh" content="5">' in text for text in pages)
    assert "refresh" not in page.read_text(), "nothing is written any more"
    assert not list(tmp_path.glob(".watch*"))


def test_a_pipe_gets_a_line_when_something_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from foretune.cli.watch import _lines

    trials = tmp_path / "trials"
    for name in ("a", "b"):
        write_task(Task(name=name, worker="foretune.sweeps.trial_worker", request={}, folder=trials / name))
    endings: list[Callable[[], object]] = [
        lambda: None,
        lambda: write_outcome(trials / "a", TaskOutcome(kind="done", seconds=1.0)),
        lambda: None,
        lambda: write_outcome(trials / "b", TaskOutcome(kind="crashed", reason="no", log_lines=("last",))),
    ]

    def passes(_: float) -> None:
        endings.pop(0)()

    states = looks(Watcher(tmp_path), 5.0, None, passes)
    _lines(next(states), states)
    printed = capsys.readouterr().out
    assert printed.count("waiting") == 2, "at first, and when a was done"
    assert printed.count("1 of 2 runs ended (1 done), 1 waiting") == 1
    assert printed.rstrip().endswith("last")


def test_reports_list_runs_as_they_are_typed(foretune: Foretune, tmp_path: Path) -> None:
    for number in range(3):
        make_run(tmp_path / "runs" / f"run-{number}", [0.1] * (number + 1), peak_host_bytes=(number + 1) * 2**30)
    listed = foretune("report", "runs", "--where", "steps>=2", "--sort", "memory_bytes:desc", "--top", "1")
    assert listed.returncode == 0
    assert listed.stdout.splitlines()[1].split()[:3] == ["run-2", "train", "owner/tiny"]
    assert "3.0 GiB" in listed.stdout
    assert listed.stdout.rstrip().endswith("2 of 3 runs; the first 1 are shown.")
    assert not (tmp_path / "report.html").exists()
    data = foretune("report", "runs", "--columns", "run,memory_bytes", "--json", "-", "--where", "path~0")
    assert json.loads(data.stdout) == [{"run": "run-0", "memory_bytes": 2**30}]
    table = foretune("report", "runs", "--columns", "run,train.ema", "--csv", "-", "--sort", "steps", "--top", "2")
    assert table.stdout == "run,train.ema\nrun-2,\nrun-1,\n"
    groups = foretune("report", "runs", "--summary", "--by", "steps", "--csv", "groups.csv")
    assert "3 finished" not in groups.stdout
    assert "Written: groups.csv" in groups.stdout
    assert (tmp_path / "groups.csv").read_text().splitlines()[0].startswith("steps,runs,runs finished,")
    page = foretune("report", "runs", "--where", "steps>=2", "-o", "some.html", "--title", "Some")
    assert "Written: some.html" in page.stdout
    text = (tmp_path / "some.html").read_text()
    assert "run-1" in text
    assert "run-0" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--summary", "--top", "3"], "--top is for a list of runs"),
        (["--where", "steps=1", "--title", "x"], "--title is for a page. Add: -o report.html"),
        (["--where", "nothing=1"], "There is no column named 'nothing'"),
        (["--where", "status=done", "-o", "x.html"], "No run is selected"),
        (["--by", "modle"], "Did you mean 'model'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: list[str], message: str, foretune: Foretune, tmp_path: Path
) -> None:
    make_run(tmp_path / "runs" / "a", [0.1])
    answer = foretune("report", "runs", *arguments)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert not list(tmp_path.glob("*.html"))


def test_text_from_a_run_moves_no_cursor_and_is_no_formula(foretune: Foretune, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a", [0.1], status="failed")
    path = run / "record.json"
    record = json.loads(path.read_text())
    record["outcome"]["reason"] = "=cmd()\x1b[2J\u202egnp"
    path.write_text(json.dumps(record))
    shown = foretune("report", "runs", "--columns", "run,reason")
    assert "\x1b" not in shown.stdout
    assert "\u202e" not in shown.stdout
    assert "'=cmd()" in foretune("report", "runs", "--columns", "reason", "--csv", "-").stdout
    watched = foretune("watch", "runs", "--once").stdout
    assert "\x1b" not in watched
    assert "=cmd()" in watched
