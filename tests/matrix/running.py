"""One cell of the capability matrix, run on a tiny model: trained, saved, resumed, exported, reloaded."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from foretune.choices.matrix import Cell, experiment_of
from foretune.config.reading import Asked, understand
from foretune.core.observer import Observer
from foretune.record.run_directory import RunDirectory
from foretune.training.exporting import ExportProof, export
from foretune.training.reload_check import check
from foretune.training.train import Trained, resume, train
from tests.training.short_runs import of_model

NUM_STEPS = 2


@dataclass(frozen=True)
class Ran:
    """What a cell left behind."""

    trained: Trained
    resumed: Trained
    num_different: int
    """Tensors of the last checkpoint that a resumed run made otherwise."""
    proof: ExportProof


def asked_of(cell: Cell, model: Path, work: Path, **sections: Any) -> Asked:
    """The experiment of a cell, small enough to run in a second. `sections` replace those that it would have."""
    return understand({**mapping_of(cell, model, work), **sections}, source=" / ".join(cell))


def mapping_of(cell: Cell, model: Path, work: Path) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "cell",
        "model": str(model),
        "data": {
            "kind": "shapes",
            "num_samples": 6,
            "resolution": 32,
            "cache_dir": str(work / "cache"),
            "max_text_tokens": 16,
            "held_out": 0,
            **of_model(model),
        },
        "train": {"steps": NUM_STEPS, "batch_size": 2},
        "optimizer": {"lr": 1e-3},
        "validate": {"num_held_out": 0},
        "save": {"every": 1, "keep": NUM_STEPS},
        "parallel": {"device": "cpu"},
    }
    mapping = experiment_of(cell, base)
    if mapping["method"]["kind"] == "oft":
        mapping["method"]["block_size"] = 4  # the layers are tiny
    return mapping


def run_cell(cell: Cell, model: Path, work: Path) -> Ran:
    """Forward, backward, update, save; then again from the first checkpoint; then export and reload."""
    asked = asked_of(cell, model, work)
    trained = train(asked, work / "runs", Observer())
    resumed_run = as_if_killed_after_the_first_step(trained.run, work)
    resumed = resume(resumed_run, Observer())
    proof = export(trained.run, work / "exported", reload=check).proof
    return Ran(trained, resumed, num_different(trained.run, resumed.run), proof)


def as_if_killed_after_the_first_step(run: RunDirectory, work: Path) -> RunDirectory:
    copy = work / "killed" / run.path.name
    shutil.copytree(run.path, copy)
    newest = max((copy / "checkpoints").iterdir())
    shutil.rmtree(newest)
    (copy / "record.json").unlink()
    return RunDirectory.open(copy)


def num_different(one: RunDirectory, other: RunDirectory) -> int:
    """Tensors of the last checkpoints, shard by shard, that are not equal bit for bit."""
    found = [max((run.path / "checkpoints").iterdir()) for run in (one, other)]
    files = sorted(path.name for path in found[0].glob("*.safetensors"))
    assert files == sorted(path.name for path in found[1].glob("*.safetensors")), "the same parts are saved"
    assert files, "something is saved"
    num_different = 0
    for name in files:
        first, second = (load_file(path / name) for path in found)
        assert set(first) == set(second), "the same tensors are saved"
        num_different += sum(not torch.equal(first[key], second[key]) for key in first)
    return num_different
