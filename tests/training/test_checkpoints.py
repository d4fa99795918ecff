"""The store: what is written is what is read, old ones make room, and nothing damaged is trusted."""

import errno
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from foretune.training import checkpoint_files
from foretune.training.checkpoint_files import Checkpoint, DamagedCheckpoint, read, verify
from foretune.training.checkpoints import CheckpointStore, NoGoodCheckpoint
from foretune.training.not_finite import NotFinite

COMPONENTS = ("weights", "optimizer")


def made(step: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    tensors = {name: {"a": torch.randn(3, 4, generator=generator), "b": torch.tensor(7)} for name in COMPONENTS}
    # Values that compare as equal although their bits differ.
    tensors["weights"]["odd"] = torch.tensor([0.0, -0.0])
    return Checkpoint(step, tensors, {"scaler": {"scale": 0.1 + 0.2}})


def store_with(directory: Path, *steps: int, keep: int = 9) -> CheckpointStore:
    store = CheckpointStore(directory, keep)
    for step in steps:
        store.write(made(step))
    return store


def assert_same(found: Checkpoint, expected: Checkpoint) -> None:
    assert (found.step, found.scalars) == (expected.step, expected.scalars)
    for component, tensors in expected.tensors.items():
        assert found.tensors[component].keys() == tensors.keys()
        for name, tensor in tensors.items():
            other = found.tensors[component][name]
            assert other.dtype == tensor.dtype
            assert other.numpy().tobytes() == tensor.numpy().tobytes()


def test_the_newest_comes_back_bit_for_bit(tmp_path: Path) -> None:
    store = store_with(tmp_path, 10, 200, 30)
    assert store.steps() == [10, 30, 200]
    found = store.read_newest(COMPONENTS)
    assert found is not None
    assert_same(found[0], made(200))
    assert found[1] == []


def test_none_at_all(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path, 1).read_newest(COMPONENTS) is None


def test_old_ones_make_room(tmp_path: Path) -> None:
    assert store_with(tmp_path, 1, 2, 3, 4, keep=2).steps() == [3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000003", "step-000000004"]


def test_a_disk_that_fills_up_keeps_the_one_before_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written in part makes room again: the log and the record of the end still have to be written."""
    store = store_with(tmp_path, 1)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(checkpoint_files, "_write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        store.write(made(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    for name in (".writing-step-000000005", ".removing-step-000000001"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights.safetensors").write_bytes(b"half")
    store = store_with(tmp_path, 6)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000006"]
    assert store.steps() == [6]


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", [cut_short, flip_a_bit, Path.unlink])
def test_a_damaged_one_is_passed_over(file: str, damage: Callable[[Path], object], tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2)
    damage(store.path(2) / file)
    found = store.read_newest(COMPONENTS)
    assert found is not None
    checkpoint, faults = found
    assert_same(checkpoint, made(1))
    assert len(faults) == 1
    assert faults[0].startswith("step-000000002: ")


def test_only_damaged_ones_are_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2)
    for step in (1, 2):
        cut_short(store.path(step) / "weights.safetensors")
    with pytest.raises(NoGoodCheckpoint):
        store.read_newest(COMPONENTS)


def test_a_reader_may_refuse_more(tmp_path: Path) -> None:
    def refuse_two(checkpoint: Checkpoint) -> None:
        if checkpoint.step == 2:
            raise DamagedCheckpoint("belongs to another model")

    found = store_with(tmp_path, 1, 2).read_newest(COMPONENTS, refuse_two)
    assert found is not None
    assert found[0].step == 1
    assert found[1] == ["step-000000002: belongs to another model"]


def test_other_parts_than_needed(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1)
    for components in (("weights",), ("weights", "optimizer", "ema")):
        with pytest.raises(DamagedCheckpoint, match="files or components are missing, or too many"):
            read(store.path(1), components)


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("format_version", 99, "format version 99 is not known"),
        ("step", 7, "state.json says it is of step 1, manifest.json of 7"),
        ("files", {"../outside": {}}, "names a file outside"),
        ("files", [], "manifest.json cannot be read"),
    ],
)
def test_a_manifest_that_lies(key: str, value: object, complaint: str, tmp_path: Path) -> None:
    store = store_with(tmp_path, 1)
    manifest = store.path(1) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), key: value}))
    with pytest.raises(DamagedCheckpoint, match=complaint):
        read(store.path(1), COMPONENTS if key != "files" else ())


def test_a_renamed_checkpoint_is_not_of_another_step(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1)
    store.path(1).rename(store.path(5))
    verify(store.path(5))
    with pytest.raises(DamagedCheckpoint, match=r"state\.json says it is of step 1"):
        read(store.path(5), COMPONENTS)


def test_a_disk_that_writes_something_else_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read back before it counts: the older checkpoint stays the newest."""
    store = store_with(tmp_path, 1)

    def save_badly(tensors: dict[str, torch.Tensor], path: Path, metadata: None) -> None:
        save_file(tensors, path, metadata)
        flip_a_bit(path)

    monkeypatch.setattr(checkpoint_files, "save_file", save_badly)
    with pytest.raises(OSError, match="reads back different"):
        store.write(made(2))
    monkeypatch.undo()
    assert store.steps() == [1]
    store.write(made(2))
    assert store.steps() == [1, 2]


def test_a_checkpoint_in_the_way_is_replaced(tmp_path: Path) -> None:
    """A run goes on from an older one when a newer one is damaged, and comes to its step again."""
    store = store_with(tmp_path, 1, 2)
    cut_short(store.path(2) / "weights.safetensors")
    store.write(made(2))
    found = store.read_newest(COMPONENTS)
    assert found is not None
    assert_same(found[0], made(2))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("component", COMPONENTS)
def test_values_that_are_not_finite_are_not_written(component: str, value: float, tmp_path: Path) -> None:
    store = store_with(tmp_path, 1)
    bad = made(2)
    bad.tensors[component]["a"][1, 2] = value
    with pytest.raises(NotFinite, match=f"a of {component} holds NaN or infinite values"):
        store.write(bad)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
