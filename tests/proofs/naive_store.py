"""The writer that a proof must see fail: one checkpoint, overwritten in place, flushed, trusted when it is read."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from safetensors.torch import load_file, save_file

from foretune.training.checkpoint_files import Checkpoint, Place
from foretune.training.ranks import ALONE, Ranks


class NaiveStore:
    """Stands in for a CheckpointStore."""

    def __init__(self, directory: Path, keep: int, ranks: Ranks = ALONE) -> None:
        self.directory, self.ranks = directory, ranks
        self.latest = directory / "latest"

    def steps(self) -> list[int]:
        state = self.latest / "state.json"
        return [json.loads(state.read_text())["step"]] if state.exists() else []

    def write(self, checkpoint: Checkpoint) -> Path:
        self.latest.mkdir(exist_ok=True)
        for name, tensors in checkpoint.tensors.items():
            path = self.latest / f"{name}.safetensors"
            save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        state = {"step": checkpoint.step, **checkpoint.scalars}
        (self.latest / "state.json").write_text(json.dumps(state, indent=1, sort_keys=True) + "\n")
        return self.latest

    def read_newest(
        self,
        components: Iterable[str],
        check: Callable[[Checkpoint], None] | None = None,
        place: Place | None = None,
    ) -> tuple[Checkpoint, list[str]] | None:
        if not self.steps():
            return None
        state = json.loads((self.latest / "state.json").read_text())
        step = state.pop("step")
        tensors = {name: load_file(self.latest / f"{name}.safetensors") for name in components}
        return Checkpoint(step, tensors, state), []
