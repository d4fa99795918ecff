"""Stored runs by what they were asked and what was measured; the index is a copy that the files overrule."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.analyse.run_index import indexing, store
from foretune.analyse.run_index import row_format as row_format_module
from foretune.analyse.run_index.indexing import refreshed
from foretune.analyse.run_index.row_format import row_format, setting_keys
from foretune.analyse.run_index.run_row import UNREADABLE, row_of
from foretune.analyse.run_index.scanning import stamps_of
from foretune.analyse.run_index.selecting import RunTable, Selection, select_runs
from foretune.analyse.run_index.store import FILE_NAME, IndexDraft, open_stored
from foretune.analyse.run_index.summarising import summarise
from foretune.core.errors import UnknownName, UserError
from foretune.core.observer import Observer
from foretune.core.values import RunRecord
from foretune.core.values.run_record import Status
from foretune.executors.outcome import TaskOutcome
from foretune.executors.task import Task
from foretune.executors.task_files import write_outcome, write_task
from foretune.record.run_directory import RunDirectory
from foretune.record.stored_experiment import read_stored
from tests.analyse.made_runs import asked, make_run
from tests.work_counts import files_opened

OLD_S = 1_000_000_000.0
"""A time at which nothing is young any more: long ago."""


@pytest.fixture(autouse=True)
def stored_always(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(indexing, "FEWEST_STORED", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


def aged(folder: Path) -> None:
    """As if all files had been written long ago."""
    for path in folder.rglob("*"):
        os.utime(path, (OLD_S, OLD_S))


def runs_of(folder: Path, **changes: Any) -> Path:
    """Six runs in two folders: three batch sizes of LoRA, two of full fine-tuning, one killed."""
    for number, batch_size in enumerate((1, 4, 16)):
        experiment = asked(train={"batch_size": batch_size}, method={"kind": "lora", "rank": 8})
        make_run(folder / "lora" / f"run-{number}", [0.1], experiment=experiment, peak_host_bytes=(number + 1) * 2**30)
    statuses: tuple[Status, ...] = ("finished", "failed")
    for number, status in enumerate(statuses):
        experiment = asked(train={"batch_size": 4}, method={"kind": "full"})
        make_run(folder / "full" / f"run-{number}", [0.2], experiment=experiment, status=status)
    make_run(folder / "full" / "killed", [0.1] * 3, status=None)
    aged(folder)
    return folder


def measured(path: Path, **figures: Any) -> None:
    """Other figures in a record, written as a run writes it."""
    run = RunDirectory(path)
    record = run.read_record()
    assert record is not None
    changed = record.model_copy(update={"measured": record.measured.model_copy(update=figures)})
    run.write_record(RunRecord.from_mapping(changed.to_mapping()))


def selected(folder: Path, *where: str, **others: Any) -> list[str]:
    return [str(row[0]) for row in select(folder, *where, **others).rows]


def select(folder: Path, *where: str, **others: Any) -> RunTable:
    return select_runs([folder], Selection.of(where, ("path",), **others))


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ((), ["full/killed", "full/run-0", "full/run-1", "lora/run-0", "lora/run-1", "lora/run-2"]),
        (("method.kind=full", "status=finished"), ["full/run-0"]),
        (("train.batch_size>=4", "method.kind=lora"), ["lora/run-1", "lora/run-2"]),
        (("train.batch_size=1,16",), ["lora/run-0", "lora/run-2"]),
        (("train.batch_size!=4", "status=finished"), ["lora/run-0", "lora/run-2"]),
        (("memory_bytes<=2GiB", "method.kind=lora"), ["lora/run-0", "lora/run-1"]),
        (("method.rank=none", "status!=no record"), ["full/run-0", "full/run-1"]),
        (("method.rank!=8", "status!=no record"), ["full/run-0", "full/run-1"]),
        (("status=FIN*", "method.kind~UL"), ["full/run-0"]),
        (("status=no record",), ["full/killed"]),
        (("steps>=3",), ["full/killed"]),
        (("path=lora/*", "train.batch_size<4"), ["lora/run-0"]),
        (("levers.cache_latents=true", "path~run-2"), ["lora/run-2"]),
        (("quantize.denoiser=none", "path~killed"), ["full/killed"]),
        (("started>=2001-01-01", "path~killed"), ["full/killed"]),
        (("started<2001-01-01",), []),
    ],
)
def test_conditions_select_runs(where: tuple[str, ...], wanted: list[str], tmp_path: Path) -> None:
    assert selected(runs_of(tmp_path / "runs"), *where) == wanted


def test_what_is_not_finite_is_neither_small_nor_large(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    measured(runs / "lora" / "run-0", last_loss=float("nan"))
    measured(runs / "lora" / "run-1", last_loss=0.5)
    assert selected(runs, "last_loss>=0.1") == ["lora/run-1"]
    assert selected(runs, "last_loss<=9") == ["lora/run-1"]
    assert selected(runs, "last_loss=NaN") == ["lora/run-0"]
    ordered = select_runs([runs], Selection.of(("path=lora/*",), ("last_loss",), "last_loss")).rows
    assert [row[0] for row in ordered] == [0.5, "NaN", None]


def test_a_sorted_table_begins_with_the_best(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    for number, speed in enumerate((3.0, 9.0, 6.0)):
        measured(runs / "lora" / f"run-{number}", samples_per_s=speed)
    lora = "path=lora/*"
    assert selected(runs, lora, sort="samples_per_s", top=2) == ["lora/run-1", "lora/run-2"]
    assert selected(runs, lora, sort="samples_per_s:asc") == ["lora/run-0", "lora/run-2", "lora/run-1"]
    assert selected(runs, lora, sort="memory_bytes", top=1) == ["lora/run-0"]
    assert selected(runs, lora, sort="path:desc") == ["lora/run-2", "lora/run-1", "lora/run-0"]
    twice = select_runs([runs], Selection.of((lora,), ("steps", "path", "steps"), "path", 1))
    assert twice.rows == ((1, "lora/run-0", 1),)
    table = select(runs, sort="samples_per_s", top=4)
    assert (len(table.rows), table.num_selected) == (4, 6)
    assert table.rows[3][0] not in {"lora/run-0", "lora/run-1", "lora/run-2"}, "what has no speed comes last"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("trian.batch_size=4", r"no column named 'trian.batch_size'. Did you mean 'train.batch_size'"),
        ("batch_size=4", r"Did you mean 'train.batch_size'"),
        ("status", r"'status' is not a condition. Examples: status=finished"),
        ("status=", r"compares with nothing.*status=none"),
        ("samples_per_s>fast", r"compares numbers, and 'fast' is none"),
        ("memory_bytes>inf", r"compares numbers"),
    ],
)
def test_a_wrong_condition_is_answered_with_the_right_one(where: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        select(runs_of(tmp_path / "runs"), where)


def test_a_setting_that_no_run_has_is_known_all_the_same(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    assert selected(runs, "data.path=./paintings") == []
    with pytest.raises(UnknownName):
        select(runs, "data.pat=./paintings")


def test_an_index_of_a_release_with_fewer_settings_is_made_again(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    assert {"method.rank", "data.path", "train.batch_size", "validate.every", "name"} <= setting_keys()
    select(runs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_format_module, "setting_keys", lambda: setting_keys() | {"train.later"})
        row_format.cache_clear()
        assert select(runs).num_read == 6, "these rows lack the default of the new key"
        assert select(runs).num_read == 0
    row_format.cache_clear()


def test_what_the_user_writes_is_no_sql(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    assert selected(runs, "status=x' OR '1'='1") == []
    assert selected(runs, "status=%") == []
    with pytest.raises(UnknownName):
        select(runs, "status) OR (1=1")


def test_the_row_of_a_run_has_every_setting_and_every_figure(tmp_path: Path) -> None:
    run = runs_of(tmp_path / "runs") / "lora" / "run-1"
    row, record = row_of(run), RunDirectory(run).read_record()
    assert record is not None
    assert row["train.batch_size"] == 4
    assert row["method.rank"] == 8
    assert row["levers.cache_text"] == "true"
    assert row["memory_bytes"] == 2 * 2**30
    assert row["environment"] == record.environment_hash
    assert row["wall_s"] == record.wall_s
    assert (row["status"], row["steps"], row["kind"]) == ("finished", 1, "train")
    assert "last_loss" not in row, "what was not measured is absent"


def test_pieces_of_an_experiment_say_what_the_whole_says(tmp_path: Path) -> None:
    effective = {"num_steps": 3, "study": {"name": "s", "changes": {"a": [1, "x: y\n  resolved:\n"]}}, "t": "é: \n # z"}
    experiment = asked(validate={"prompts": ["a: b\n\nresolved:\n", "- c"]}, track=["tensorboard"])
    path = make_run(tmp_path / "run", [0.1], experiment=experiment, effective=effective)
    _, whole, known = RunDirectory(path).read_experiment()
    assert read_stored(path / "experiment.yaml", within=path) == (whole, known) == (experiment, effective)
    text = (path / "experiment.yaml").read_text()
    for other in (f"# by hand\n{text}", text.replace("asked: {}", "asked: &a {}"), json.dumps(_plain(text))):
        (path / "experiment.yaml").write_text(other)
        assert read_stored(path / "experiment.yaml", within=path) == (whole, known)


def _plain(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)


def test_only_what_changed_is_opened_again(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    assert select(runs).num_read == 6

    def files_of_runs(do: Callable[[], object]) -> list[str]:
        names = map(Path, files_opened(do))
        return [path.name for path in names if path.suffix in (".json", ".jsonl", ".yaml")]

    names = files_of_runs(lambda: select(runs, "status=finished"))
    assert names == [], "nothing changed, so no file of a run is opened"
    measured(runs / "lora" / "run-1", samples_per_s=5.0)
    make_run(runs / "later", [0.1])
    for path in ("lora/run-0/record.json", "lora/run-0/experiment.yaml"):
        (runs / path).unlink()
    aged(runs / "later")
    os.utime(runs / "lora" / "run-1" / "record.json", (OLD_S + 1, OLD_S + 1))
    table = select(runs)
    assert (table.num_runs, table.num_read) == (6, 2)
    assert selected(runs, "samples_per_s=5") == ["lora/run-1"]
    assert "later" in selected(runs)
    assert "lora/run-0" not in selected(runs)


def test_a_figure_that_is_edited_in_place_is_seen(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    assert selected(runs, "memory_bytes=2GiB") == ["lora/run-1"]
    path = runs / "lora" / "run-1" / "record.json"
    path.write_text(path.read_text().replace(str(2 * 2**30), str(3 * 2**30)))
    os.utime(path, (OLD_S + 5, OLD_S + 5))
    assert selected(runs, "memory_bytes=2GiB") == []


def test_a_file_that_was_written_a_moment_ago_is_looked_at_again(tmp_path: Path) -> None:
    """Its time may not change with the next write, if that comes within the same tick."""
    runs = runs_of(tmp_path / "runs")
    path = str(Path("lora/run-1"))
    assert stamps_of(runs, OLD_S + 100)[path] == stamps_of(runs, OLD_S + 200)[path]
    assert stamps_of(runs, OLD_S + 0.5)[path] != stamps_of(runs, OLD_S + 0.6)[path]


def test_a_bench_has_its_own_repeats_only_and_links_are_not_followed(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    make_run(runs / "bench" / "runs" / "repeat-0", [0.1])
    make_run(runs / "bench" / "runs" / "inner" / "beside", [0.1])
    (runs / "bench" / "bench.json").write_text("{}")
    (runs / "lora" / "latest").symlink_to("run-1")
    make_run(tmp_path / "elsewhere", [0.1])
    (runs / "link").symlink_to(tmp_path / "elsewhere")
    from foretune.analyse.run_data import runs_in

    found = {str(run.path.relative_to(runs)) for run in runs_in(runs)}
    assert found == set(stamps_of(runs))
    assert "bench/runs/repeat-0" in found
    assert len(found) == 7


def test_a_damaged_run_is_a_row_that_says_so(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    (runs / "lora" / "run-0" / "record.json").write_text("{")
    (runs / "lora" / "run-1" / "experiment.yaml").write_text("asked: [")
    (runs / "lora" / "run-2" / "record.json").unlink()
    (runs / "lora" / "run-2" / "record.json").symlink_to("/etc/passwd")
    table = select_runs([runs], Selection.of((f"status={UNREADABLE}",), ("path", "reason")))
    assert [row[0] for row in table.rows] == ["lora/run-0", "lora/run-1", "lora/run-2"]
    reasons = [str(row[1]) for row in table.rows]
    assert "not JSON" in reasons[0]
    assert "experiment" in reasons[1]
    assert "outside of" in reasons[2]


def _link_to_another(path: Path) -> None:
    elsewhere = path.parent.parent / "another.sqlite"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _with_statement(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(statement)

    return change


def _torn(path: Path) -> None:
    content = path.read_bytes()
    # The header and the table of stamps are whole: the damage is found when rows are read.
    path.write_bytes(content[: len(content) // 2] + os.urandom(len(content) - len(content) // 2))


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("runs"),
    "torn": _torn,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "older format": _with_statement(f"PRAGMA user_version = {row_format() - 1}"),
    "another program's": _with_statement("PRAGMA application_id = 7"),
    "a view in place of rows": _with_statement("CREATE VIEW more AS SELECT 1"),
    "a trigger": _with_statement("CREATE TRIGGER t AFTER DELETE ON runs BEGIN SELECT load_extension('x'); END"),
    "a column more": _with_statement("ALTER TABLE runs ADD COLUMN c9999"),
    "columns out of order": _with_statement("UPDATE columns SET position = position + 1000 WHERE position = 3"),
    "link": _link_to_another,
    "pipe": _pipe,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_an_index_that_cannot_be_used_is_made_again(name: str, tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    wanted = select_runs([runs], Selection.of())
    DAMAGES[name](runs / FILE_NAME)
    again = select_runs([runs], Selection.of())
    assert again.rows == wanted.rows
    assert again.num_read == 6, "nothing of it was used"
    assert (runs / FILE_NAME).is_file()
    assert not (runs / FILE_NAME).is_symlink()
    assert select_runs([runs], Selection.of()).num_read == 0


def test_the_index_holds_nothing_that_could_run(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    select(runs)
    with sqlite3.connect(runs / FILE_NAME) as connection:
        kinds = {kind for (kind,) in connection.execute("SELECT DISTINCT type FROM sqlite_schema")}
        values = {kind for row in connection.execute("SELECT * FROM runs") for kind in map(type, row)}
    assert kinds == {"table"}
    assert values <= {int, float, str, type(None)}


def test_a_reader_keeps_what_it_opened_while_others_write(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    with refreshed(runs) as first:
        make_run(runs / "later", [0.1])
        with refreshed(runs) as second, refreshed(runs) as third:
            rows = [list(index.index.select(("status",), "1", ())) for index in (first, second, third)]
    assert list(map(len, rows)) == [6, 7, 7]
    assert not list(runs.glob("*.writing"))


def test_two_writers_never_wait_for_each_other(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    select(runs)
    one, other = IndexDraft(runs, is_new=False), IndexDraft(runs, is_new=True)
    one.index.remove(["full/killed"])
    other.index.add([("x", "stamp", {"status": "finished"})])
    one.publish()
    other.publish()
    for draft in (one, other):
        draft.index.close()
        draft.discard()
    # The last one is there, whole, and it is not believed.
    assert len(selected(runs)) == 6


def test_processes_that_read_at_once_agree(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    script = (
        "import sys\nfrom pathlib import Path\nfrom foretune.analyse.run_index import indexing\n"
        "from foretune.analyse.run_index.selecting import Selection, select_runs\nindexing.FEWEST_STORED = 1\n"
        "print(len(select_runs([Path(sys.argv[1])], Selection.of()).rows))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", script, str(runs)], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [process.communicate()[0] for process in started] == ["6\n"] * 3
    assert select(runs).num_read == 0


def test_a_read_only_folder_has_its_index_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = runs_of(tmp_path / "runs")
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != runs and access(path, mode))
    assert (select(runs).num_read, select(runs).num_read) == (6, 0)
    assert not (runs / FILE_NAME).exists()
    assert len(list((tmp_path / "user-cache").rglob("*.sqlite"))) == 1


def test_where_nothing_can_be_stored_the_answer_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = runs_of(tmp_path / "runs")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert len(selected(runs)) == 6
    monkeypatch.setattr(store, "_connected", full)
    assert len(selected(runs)) == 6
    assert not list(runs.glob(f"{FILE_NAME}*"))


def test_what_was_read_before_an_interrupt_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = runs_of(tmp_path / "runs")
    monkeypatch.setattr(indexing, "_REPORT_EVERY", 2)
    monkeypatch.setattr(store, "_BATCH", 2)

    class Impatient(Observer):
        def preparing(self, what: str, done: int, total: int) -> None:
            if done == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), refreshed(runs, Impatient()):
        pytest.fail("it was interrupted")
    stored = open_stored(runs)
    assert stored is not None
    assert len(stored.stamps()) == 4
    stored.close()
    assert select(runs).num_read == 2


def test_few_runs_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "FEWEST_STORED", 7)
    runs = runs_of(tmp_path / "runs")
    assert len(selected(runs)) == 6
    assert not (runs / FILE_NAME).exists()


def test_trials_are_rows_whether_or_not_they_made_a_run(tmp_path: Path) -> None:
    trials = tmp_path / "sweep" / "trials"
    request = {"experiment": {"model": "owner/tiny", "train": {"batch_size": 64}}}
    for name in ("never-began", "too-large", "killed", "fine"):
        write_task(Task(name=name, worker="foretune.sweeps.trial_worker", request=request, folder=trials / name))
    write_outcome(trials / "too-large", TaskOutcome(kind="predicted not to fit", reason="needs 30 GiB"))
    make_run(trials / "killed" / "run", [0.1], status=None)
    write_outcome(trials / "killed", TaskOutcome(kind="out of host memory", reason="SIGKILL", seconds=9.0))
    make_run(trials / "fine" / "run", [0.1])
    write_outcome(trials / "fine", TaskOutcome(kind="done", num_attempts=2, seconds=5.0))
    columns = ("path", "trial", "status", "outcome", "train.batch_size", "attempts")
    found = select_runs([tmp_path / "sweep"], Selection.of((), columns)).rows
    assert found == (
        ("trials/fine/run", "fine", "finished", "done", 2, 2),
        ("trials/killed/run", "killed", "out of host memory", "out of host memory", 2, 0),
        ("trials/never-began", "never-began", "no record", None, 64, None),
        ("trials/too-large", "too-large", "predicted not to fit", "predicted not to fit", 64, 0),
    )
    write_outcome(trials / "never-began", TaskOutcome(kind="never started", reason="the queue was closed"))
    assert selected(tmp_path / "sweep", "outcome=never started") == ["trials/never-began"]


def test_a_summary_counts_by_status_and_measures_what_finished(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    for number, speed in enumerate((3.0, 9.0, 6.5)):
        measured(runs / "lora" / f"run-{number}", samples_per_s=speed, last_loss=speed / 10)
    measured(runs / "full" / "run-0", samples_per_s=1.0)
    measured(runs / "full" / "run-1", samples_per_s=100.0)
    found = summarise([runs], Selection.of())
    # The killed run was asked for a LoRA of another rank, which makes no group of its own.
    assert found.by == ("model", "method.kind")
    assert found.common["kind"] == "train"
    full, lora = found.groups
    assert full.num_by_status == {"failed": 1, "finished": 1}
    assert (full.speed.best, full.speed.median) == (1.0, 1.0), "a run that failed has no say"
    assert lora.num_by_status == {"finished": 3, "no record": 1}
    assert (lora.speed.best, lora.speed.median) == (9.0, 6.5)
    assert (lora.memory.best, lora.memory.median) == (2**30, 2 * 2**30)
    assert (lora.loss.best, lora.is_held_out) == (0.3, False)
    by_batch = summarise([runs], Selection.of(("status=finished",)), ("train.batch_size",))
    assert [(group.key, group.num_runs) for group in by_batch.groups] == [((1,), 1), ((4,), 2), ((16,), 1)]


def test_several_folders_have_each_run_once(tmp_path: Path) -> None:
    runs = runs_of(tmp_path / "runs")
    found = select_runs([runs, runs / "lora"], Selection.of((), ("run",)))
    assert len(found.rows) == 6
    with pytest.raises(UserError, match="does not exist"):
        select_runs([tmp_path / "nowhere"], Selection.of())
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="There is no run in"):
        select_runs([tmp_path / "empty"], Selection.of())
