"""The folder of a sweep: sweeps/<name>/sweep_000/, with a folder for each trial."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from foretune.config.sweep_files import SweepAsked
from foretune.config.yaml_files import parse_written
from foretune.core.errors import UserError
from foretune.core.input_files import read_text
from foretune.record.atomic import write_text
from foretune.record.redaction import redacted
from foretune.sweeps.trial_facts import SWEEP_FILE, TRIAL, TRIALS

LOCK = "sweep.lock"
_NUMBERED = re.compile(r"sweep_(\d{3,})")
_MOST_BYTES = 16 * 2**20


@dataclass(frozen=True)
class SweepFolder:
    """Paths of one sweep."""

    path: Path

    @property
    def trials(self) -> Path:
        return self.path / TRIALS

    @property
    def lock(self) -> Path:
        return self.path / LOCK

    def trial(self, name: str) -> Path:
        return self.trials / name

    def trial_folders(self) -> Iterator[Path]:
        """Of every trial that was submitted or decided, in the order of their names."""
        yield from (path.parent for path in sorted(self.trials.glob(f"*/{TRIAL}")))

    def read_file(self) -> dict[str, Any]:
        """The sweep file with its experiment in it."""
        path = self.path / SWEEP_FILE
        if not path.is_file():
            raise UserError(f"{self.path} is not the folder of a sweep: it has no {SWEEP_FILE}.")
        content: dict[str, Any] = parse_written(read_text(path, _MOST_BYTES, within=self.path))
        return content


def sweep_folder(sweeps: Path, asked: SweepAsked, *, is_new: bool = False) -> SweepFolder:
    """The folder in which a sweep is continued, or a new one.

    It is continued if it measures the same of the same experiment; its axes, strategy and seeds may have changed.
    """
    existing = sorted(
        (path for path in (sweeps / asked.name).glob("sweep_*") if _NUMBERED.fullmatch(path.name)),
        key=lambda path: int(path.name.rpartition("_")[2]),
    )
    if existing and not is_new:
        newest = SweepFolder(existing[-1])
        if not (newest.path / SWEEP_FILE).is_file() or _measured(newest.read_file()) == _measured(_written(asked)):
            return _made(newest, asked)
    number = int(existing[-1].name.rpartition("_")[2]) + 1 if existing else 0
    return _made(SweepFolder(sweeps / asked.name / f"sweep_{number:03d}"), asked)


def _made(folder: SweepFolder, asked: SweepAsked) -> SweepFolder:
    try:
        folder.trials.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The folder {folder.path} cannot be made: {error.strerror or error}. Put it elsewhere: --sweeps DIR"
        ) from error
    write_text(folder.path / SWEEP_FILE, yaml.safe_dump(_written(asked), sort_keys=False, allow_unicode=True))
    return folder


def _written(asked: SweepAsked) -> dict[str, Any]:
    written: dict[str, Any] = redacted({**asked.to_mapping(), "name": asked.name})
    return written


def _measured(mapping: dict[str, Any]) -> dict[str, Any]:
    """What must be the same for trials to stand in one table."""
    kept = ("experiment", "measure", "steps", "synthetic_data", "evaluate")
    return {**{key: mapping.get(key) for key in kept}, "host_gib": (mapping.get("limits") or {}).get("host_gib")}
