"""Saves beside the training: the checkpoint is that of its step, whatever the training does meanwhile."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune.core.observer import Observer
from foretune.record.checking import check_run
from foretune.training.checkpoint_files import Checkpoint, copied_to_host, files_of, read
from foretune.training.checkpoints import CheckpointStore
from foretune.training.ranks import ALONE
from foretune.training.saver import Saver
from foretune.training.train import resume
from tests.training.short_runs import Recording, events_of, short_run
from tests.waiting import HANG_S

TinyPipeline = Callable[..., Path]


class HeldStore(CheckpointStore):
    """Writes when it is let."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, keep=2)
        self.may_write = threading.Event()

    def write_files(self, *arguments: Any) -> Path:
        assert self.may_write.wait(HANG_S)
        return super().write_files(*arguments)


def checkpoint_of(weight: torch.Tensor, step: int) -> Checkpoint:
    return Checkpoint(step, {"weights": {"w": weight}}, {})


def test_the_training_goes_on_while_a_copy_is_written(tmp_path: Path) -> None:
    store, weight = HeldStore(tmp_path), torch.arange(4.0)
    saver = Saver(store, is_asynchronous=True)
    assert saver.save(checkpoint_of(weight, 1)) is None
    weight += 100
    assert saver.take(waits=False) is None
    assert store.steps() == []
    store.may_write.set()
    assert saver.take(waits=True) == (1, store.path(1))
    assert read(store.path(1), ("weights",)).tensors["weights"]["w"].tolist() == [0, 1, 2, 3]
    assert saver.take(waits=True) is None, "each save is reported once"


@pytest.mark.gpu
def test_a_copy_of_what_is_on_a_gpu_is_complete_at_once() -> None:
    """The thread that writes it waits for nothing."""
    checkpoint = checkpoint_of(torch.full((1 << 20,), 2.5, device="cuda"), 3)
    (shards,) = copied_to_host(files_of(checkpoint, ALONE)).values()
    (shard,) = shards.values()
    assert shard.tensor.device.type == "cpu"
    assert bool((shard.tensor == 2.5).all())


def test_what_went_wrong_is_raised_where_it_is_asked_for(tmp_path: Path) -> None:
    saver = Saver(CheckpointStore(tmp_path / "gone", keep=1), is_asynchronous=True)
    saver.save(checkpoint_of(torch.zeros(1), 1))
    with pytest.raises(FileNotFoundError):
        saver.take(waits=True)
    assert saver.take(waits=True) is None


def test_a_synchronous_save_is_there_at_once(tmp_path: Path) -> None:
    saver = Saver(CheckpointStore(tmp_path, keep=1))
    assert saver.save(checkpoint_of(torch.zeros(1), 3)) == (3, tmp_path / "step-000000003")


SAVES: dict[str, Any] = {"train": {"steps": 6, "ema": {}}, "save": {"every": 2, "keep": 9}}
BESIDE: dict[str, Any] = {**SAVES, "save": {**SAVES["save"], "asynchronous": True}}


def test_a_run_saves_the_same_beside_its_training(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    model = tiny_pipeline("ddpm")
    before = short_run(model, tmp_path / "sync", **SAVES)
    beside = short_run(model, tmp_path / "async", observer=(observer := Recording()), **BESIDE)
    assert observer.of("saved") == [2, 4, 6]
    parts = ("weights", "optimizer", "ema")
    for step in (2, 4, 6):
        one, other = (read(run.run.checkpoints / f"step-{step:09d}", parts) for run in (before, beside))
        assert one.scalars == other.scalars
        for part, tensors in one.tensors.items():
            assert all(torch.equal(tensor, other.tensors[part][name]) for name, tensor in tensors.items()), part
    assert check_run(beside.run.path).faults == ()
    assert beside.record.outcome.status == "finished"


def test_a_save_that_fails_beside_the_training_ends_the_run(
    tiny_pipeline: TinyPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files = CheckpointStore.write_files

    def full(store: CheckpointStore, step: int, *arguments: Any) -> Path:
        if step == 4:
            raise OSError(28, "No space left on device")
        return write_files(store, step, *arguments)

    monkeypatch.setattr(CheckpointStore, "write_files", full)
    ended = short_run(tiny_pipeline("ddpm"), tmp_path, **BESIDE)
    outcome = ended.record.outcome
    assert (outcome.status, outcome.steps_done) == ("failed", 2)
    assert "No space left on device" in str(outcome.reason)
    assert [event["step"] for event in events_of(ended.run, "saved")] == [2]
    assert check_run(ended.run.path).faults == ()
    monkeypatch.undo()
    again = resume(ended.run, Observer())
    assert again.record.outcome.status == "finished"
    assert check_run(again.run.path).faults == ()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_a_save(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if (event["kind"], event.get("step")) != ("saved", 2)]


def with_a_late_save(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    (late,) = [event for event in events if (event["kind"], event.get("step")) == ("saved", 2)]
    return [*(event for event in events[:-1] if event is not late), late, events[-1]]


def with_an_early_save(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    (early,) = [event for event in events if (event["kind"], event.get("step")) == ("saved", 2)]
    return [events[0], early, *(event for event in events[1:] if event is not early)]


@pytest.mark.parametrize("change", [without_a_save, with_a_late_save, with_an_early_save])
def test_a_log_whose_saves_are_not_in_order_is_noticed(
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], tiny_pipeline: TinyPipeline, tmp_path: Path
) -> None:
    run = short_run(tiny_pipeline("ddpm"), tmp_path, **BESIDE).run
    assert check_run(run.path).faults == ()
    changed = change(lines_of(run.events))
    run.events.write_text("".join(json.dumps(event) + "\n" for event in changed))
    assert any("'saved' of step 2" in fault or "'saved' of step 4" in fault for fault in check_run(run.path).faults)
