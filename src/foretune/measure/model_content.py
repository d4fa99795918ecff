"""The content of a model and of an adapter that are measured: a measurement counts for nothing else.

Runs are trained further, branches of the Hub move, and folders are written again under the same names.
"""

import hashlib
from pathlib import Path
from typing import Any

from foretune.choices.model import MODEL_SUFFIXES, resolve_model
from foretune.core.units import MIB
from foretune.models.locating import locate
from foretune.record.run_directory import RunDirectory
from foretune.training.checkpoints import CheckpointStore

_MOST_HASHED_BYTES = 64 * MIB


def model_content(target: str) -> dict[str, Any]:
    """The newest checkpoint of a run, the commit of a model of the Hub, or the files of a folder."""
    if (Path(target) / "experiment.yaml").is_file():
        run = RunDirectory.open(Path(target))
        steps = CheckpointStore(run.checkpoints, keep=1).steps() if run.checkpoints.is_dir() else []
        return {"run": run.run_id, "step": max(steps, default=None)}
    folder, revision = locate(resolve_model(target))
    return {"files": file_contents(folder)} if revision is None else {"revision": revision}


def file_contents(path: Path) -> dict[str, list[Any]]:
    """Size and checksum of each file of a model or adapter; of a large one, size and time of its last change."""
    paths = [path] if path.is_file() else sorted(one for pattern in ("*", "*/*") for one in path.glob(pattern))
    return {
        str(one.relative_to(path)) if one != path else one.name: _content(one)
        for one in paths
        if one.suffix in MODEL_SUFFIXES and one.is_file()
    }


def _content(path: Path) -> list[Any]:
    facts = path.stat()
    is_small = facts.st_size <= _MOST_HASHED_BYTES
    return [facts.st_size, hashlib.sha256(path.read_bytes()).hexdigest() if is_small else facts.st_mtime_ns]
