"""Sweep files of a few combinations, whose trials are not run."""

from pathlib import Path
from typing import Any

import yaml

from foretune.config.sweep_files import SweepAsked, check_sweep, load_sweep

EXPERIMENT: dict[str, Any] = {
    "model": "flux.1-dev",
    "data": {"kind": "shapes"},
    "method": {"kind": "lora", "rank": 4},
    "train": {"steps": 4},
    "parallel": {"device": "cpu"},
}
AXES: dict[str, Any] = {"train.batch_size": [1, 2], "train.precision": ["fp32", "bf16"]}


def written(folder: Path, **changes: Any) -> Path:
    """A sweep file; what is None is left out."""
    mapping = {"experiment": EXPERIMENT, "axes": AXES, **changes}
    path = folder / "batches.yaml"
    path.write_text(
        yaml.safe_dump({key: value for key, value in mapping.items() if value is not None}, sort_keys=False)
    )
    return path


def asked(folder: Path, *overrides: str, **changes: Any) -> SweepAsked:
    path = written(folder, **changes)
    return check_sweep(load_sweep(path, overrides), path, name="batches")
