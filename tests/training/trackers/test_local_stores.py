"""W&B offline, MLflow and trackio for real, on this machine; what they wrote is read back and is what the log says.

MLflow and trackio are left out where they are not installed: trackio wants another Pillow than the extra `train`.
"""

import gzip
import json
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from foretune.core.observer import Observer
from foretune.record.run_directory import RunDirectory
from foretune.training.train import resume
from tests.proofs.valid_runs import stopping_at
from tests.training.short_runs import PROMPT, Recording, losses_of, short_run

TinyPipeline = Callable[..., Path]
CANARIES = {"HF_TOKEN": "canary-hf-8d1f", "AWS_SECRET_ACCESS_KEY": "canary-aws-77c0", "WANDB_API_KEY": "canaryw" * 6}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def tracked_run(name: str, work: Path, model: Path, observer: Recording) -> RunDirectory:
    trained = short_run(model, work, observer=observer, track=[name], validate={"prompts": [PROMPT]})
    assert observer.of("warning") == []
    return trained.run


def assert_no_secret(folder: Path) -> None:
    found = [path for path in folder.rglob("*") if path.is_file()]
    assert found
    for path in found:
        content = path.read_bytes()
        for value in CANARIES.values():
            assert value.encode() not in content, path


_HEADER, _BLOCK, _RECORD_HEADER = 7, 32768, 7
_WHOLE, _FIRST, _LAST = 1, 2, 4


def records_in(content: bytes) -> Iterator[bytes]:
    """What an offline run's file holds: a log in blocks, over several of which a record may go (LevelDB's layout)."""
    place, held = _HEADER, b""
    while place + _RECORD_HEADER <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _RECORD_HEADER:
            place += left
            continue
        _, length, part = struct.unpack_from("<IHB", content, place)
        data = content[place + _RECORD_HEADER : place + _RECORD_HEADER + length]
        place += _RECORD_HEADER + length
        held = data if part in (_WHOLE, _FIRST) else held + data
        if part in (_WHOLE, _LAST):
            yield held


def wandb_records(folder: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("offline-run-*/run-*.wandb")
    for data in records_in(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        yield record


def test_wandb_offline(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    pytest.importorskip("wandb")
    run = tracked_run("wandb", tmp_path, tiny_pipeline("flux"), Recording())
    rows, started = [], []
    for record in wandb_records(run.path / "wandb"):
        if record.WhichOneof("record_type") == "history":
            rows.append({item.key or "/".join(item.nested_key): item.value_json for item in record.history.item})
        elif record.WhichOneof("record_type") == "run":
            started.append(record.run)
    losses = [json.loads(row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == pytest.approx(losses_of(run), rel=1e-9)
    assert [json.loads(row["step"]) for row in rows if "train/loss" in row] == [1, 2, 3]
    assert sum("validate/held_out_loss" in row for row in rows) == 2
    assert any(name.startswith("samples/0") for row in rows for name in row)
    assert (started[0].project, started[0].run_id) == ("short", run.run_id)
    config = {item.key: item.value_json for item in started[0].config.update}
    assert config["train.steps"] == "3"
    assert_no_secret(run.path)


def test_mlflow_in_a_local_file(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    run = tracked_run("mlflow", tmp_path, tiny_pipeline("flux"), Recording())
    with sqlite3.connect(tmp_path / "runs" / "mlflow.db") as database:
        losses = database.execute("SELECT step, value FROM metrics WHERE key = 'train/loss' ORDER BY step").fetchall()
        ((status, name),) = database.execute("SELECT status, name FROM runs").fetchall()
        ((steps,),) = database.execute("SELECT value FROM params WHERE key = 'train.steps'").fetchall()
    assert [step for step, _ in losses] == [1, 2, 3]
    assert [value for _, value in losses] == pytest.approx(losses_of(run))
    assert (status, name, steps) == ("FINISHED", run.run_id, "3")
    assert len(list((tmp_path / "runs" / "mlflow-artifacts").rglob("*.png"))) == 2
    assert_no_secret(tmp_path / "runs")


def test_mlflow_goes_on_with_a_resumed_run(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    trained = short_run(tiny_pipeline("ddpm"), tmp_path, observer=stopping_at(1), track=["mlflow"])
    path = tmp_path / "runs" / "mlflow.db"
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT status FROM runs").fetchall() == [("KILLED",)]
    resume(trained.run, Observer())
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT status FROM runs").fetchall() == [("FINISHED",)]
        steps = database.execute("SELECT step FROM metrics WHERE key = 'train/loss' ORDER BY step").fetchall()
    assert steps == [(1,), (2,), (3,)]


def test_trackio_in_its_own_folder(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    trackio = pytest.importorskip("trackio")
    folder = Path(trackio.utils.TRACKIO_DIR)
    run = tracked_run("trackio", tmp_path, tiny_pipeline("flux"), Recording())
    (path,) = folder.glob("short*.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT step, metrics FROM metrics WHERE run_name = ?", (run.run_id,)).fetchall()
    reported = {step: metrics for step, metrics in ((s, json.loads(m)) for s, m in rows) if "train/loss" in metrics}
    assert sorted(reported) == [1, 2, 3]
    assert [reported[step]["train/loss"] for step in (1, 2, 3)] == pytest.approx(losses_of(run))
    assert_no_secret(folder)


def test_a_profiled_run_in_tensorboard_and_wandb(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """The trace lies beside the curves, where TensorBoard's profiler plugin finds it: tensorboard --logdir RUN."""
    pytest.importorskip("wandb")
    observer, profile = Recording(), {"at_step": 1, "steps": 1}
    trained = short_run(
        tiny_pipeline("ddpm"), tmp_path, observer=observer, track=["tensorboard", "wandb"], profile=profile
    )
    assert observer.of("warning") == []
    path = trained.run.path
    (trace,) = (path / "profile").glob("*.pt.trace.json.gz")
    with gzip.open(trace, "rt", encoding="utf-8") as stream:
        assert "ProfilerStep#" in stream.read()
    events = EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    curve = {event.step: event.value for event in events.Scalars("train/loss")}
    assert curve == {step: pytest.approx(loss, rel=1e-6) for step, loss in enumerate(losses_of(trained.run), start=1)}
    history = [record for record in wandb_records(path / "wandb") if record.WhichOneof("record_type") == "history"]
    keys = [{item.key or "/".join(item.nested_key) for item in record.history.item} for record in history]
    assert sum("train/loss" in names for names in keys) == len(curve) == 3
