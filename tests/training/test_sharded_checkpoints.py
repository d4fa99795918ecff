"""Checkpoints that several processes write together: each its shards, or none of them anything."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from foretune.training.checkpoint_files import DamagedCheckpoint, Shard, read, write_tensors
from foretune.training.checkpoints import CheckpointStore
from tests.training.rank_runs import run_ranks

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

WHOLE = torch.arange(35.0).reshape(7, 5)


@pytest.fixture
def saved(tmp_path: Path, forked_python: "ForkedPython") -> Callable[..., list[Any]]:
    """Saves twice; the second time processes may have a fault."""

    def save(size: int, mesh: list[int], by_rank: dict[str, Any] | None = None) -> list[Any]:
        folder, faults = str(tmp_path), by_rank or {}
        return run_ranks(forked_python.python, size, "saved", mesh=mesh, directory=folder, by_rank=faults)

    return save


@pytest.fixture(scope="module")
def two_shards(tmp_path_factory: pytest.TempPathFactory, forked_python: "ForkedPython") -> Path:
    """Checkpoints of two steps by two processes, as they were written."""
    folder = tmp_path_factory.mktemp("two")
    run_ranks(forked_python.python, 2, "saved", mesh=[2], directory=str(folder))
    return folder


@pytest.fixture
def copied(two_shards: Path, tmp_path: Path) -> Path:
    return shutil.copytree(two_shards, tmp_path / "two")


@pytest.mark.parametrize(("size", "mesh", "files"), [(4, [2, 2], 2), (3, [3], 3)])
def test_each_process_writes_its_shards_and_anybody_reads_them(
    size: int, mesh: list[int], files: int, saved: Callable[..., list[Any]], tmp_path: Path
) -> None:
    found = saved(size, mesh)
    assert [one["step"] for one in found] == [2] * size
    assert all(one["is_equal"] and one["others"] == [[3.5], 7] for one in found)
    # Seven rows; replicas hold the same ones.
    assert sum(one["own_numel"] for one in found) == 35 * size // mesh[-1]
    folder = tmp_path / "step-000000002"
    # Of groups that hold the same shards, one writes.
    assert len(list(folder.glob("shard-*.safetensors"))) == files
    alone = read(folder, ("weights",)).tensors["weights"]
    assert torch.equal(alone["a"], WHOLE)
    assert [alone["b"].tolist(), alone["count"].tolist()] == [[3.5], 7]


@pytest.mark.parametrize("at_fault", [0, 1])
def test_where_one_process_cannot_write_none_has_saved(
    at_fault: int, saved: Callable[..., list[Any]], tmp_path: Path
) -> None:
    found = saved(2, [2], {str(at_fault): {"fault": "save_file"}})
    own, other = found[at_fault]["faults"], found[1 - at_fault]["faults"]
    assert own == ["OSError: [Errno 28] No space left on device"]
    (text,) = other
    assert text.startswith(f"OtherProcessFailed: Process {at_fault} could not write its part of a checkpoint: ")
    assert "No space left on device" in text
    assert [one["step"] for one in found] == [1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"], "what was half written is gone"


def test_a_manifest_that_cannot_be_written_fails_in_all(saved: Callable[..., list[Any]], tmp_path: Path) -> None:
    found = saved(2, [2], {"0": {"fault": "_write_bytes"}})
    assert [len(one["faults"]) for one in found] == [1, 1]
    assert CheckpointStore(tmp_path, 2).steps() == [1]


def test_torch_reads_it_by_itself(two_shards: Path) -> None:
    """The layout is that of torch.distributed.checkpoint."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    target = {"weights/a": torch.empty(7, 5)}
    load(target, storage_reader=HuggingFaceStorageReader(str(two_shards / "step-000000002")), no_dist=True)
    assert torch.equal(target["weights/a"], WHOLE)


def remove_a_shard(folder: Path) -> None:
    (folder / "shard-00002.safetensors").unlink()


def forget_a_shard(folder: Path) -> None:
    """The manifest, too, knows nothing of it."""
    remove_a_shard(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["shard-00002.safetensors"]
    (folder / "manifest.json").write_text(json.dumps(manifest))


def add_a_file(folder: Path) -> None:
    (folder / "more.safetensors").write_bytes((folder / "shard-00001.safetensors").read_bytes())


def forget_the_state(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["state.json"]
    (folder / "manifest.json").write_text(json.dumps(manifest))


def forget_the_first(folder: Path) -> None:
    (folder / "shard-00001.safetensors").unlink()
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["shard-00001.safetensors"]
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (remove_a_shard, "shard-00002.safetensors cannot be read"),
        (add_a_file, "more.safetensors"),
        (forget_the_state, "state.json"),
        (forget_the_first, "the shards of weights/a are not the whole tensor"),
    ],
)
def test_a_shard_too_few_or_too_many_is_noticed(damage: Callable[[Path], None], words: str, copied: Path) -> None:
    damage(copied / "step-000000002")
    with pytest.raises(DamagedCheckpoint, match=words):
        read(copied / "step-000000002", ("weights",))
    found = CheckpointStore(copied, 2).read_newest(("weights",))
    assert found is not None
    assert found[0].step == 1


def test_without_its_last_shard_a_tensor_has_another_shape(copied: Path) -> None:
    """Which `training.state.check` refuses: the model knows the shapes."""
    forget_a_shard(copied / "step-000000002")
    assert read(copied / "step-000000002", ("weights",)).tensors["weights"]["a"].shape == (4, 5)


def test_equal_shards_are_equal_bytes(tmp_path: Path) -> None:
    shards = {"shard-00001.safetensors": {f"weights/{key}": Shard(WHOLE.clone(), (0, 0)) for key in "ab"}}
    written = [write_tensors(tmp_path, shards)["shard-00001.safetensors"]["blake2b"] for _ in range(20)]
    assert len(set(written)) == 1


def test_another_part_is_refused(two_shards: Path) -> None:
    with pytest.raises(DamagedCheckpoint, match="files or components are missing, or too many"):
        read(two_shards / "step-000000002", ("other",))
