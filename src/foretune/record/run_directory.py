"""The run directory: copying it is how results travel."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from foretune.choices.experiment import Experiment
from foretune.core.errors import UserError
from foretune.core.values import RunRecord
from foretune.record.atomic import write_text


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run, and the files that are written once."""

    path: Path

    @classmethod
    def create(cls, runs: Path, name: str) -> "RunDirectory":
        """A new directory whose name says when; a few random digits keep two starts in a second apart."""
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
        path = runs / name / run_id
        path.mkdir(parents=True)
        for part in ("checkpoints", "samples"):
            (path / part).mkdir()
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        if not (path / "experiment.yaml").is_file():
            raise UserError(
                f"{path} is not a run directory: it has no experiment.yaml. A run's path has the form "
                "runs/<experiment>/<run id>; `foretune train` prints it."
            )
        return cls(path)

    @property
    def run_id(self) -> str:
        return self.path.resolve().name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    def write_experiment(self, as_asked: dict[str, Any], experiment: Experiment, effective: dict[str, Any]) -> None:
        """As asked, as understood with every default, and what followed from it: nothing silent."""
        content = {"asked": as_asked, "resolved": experiment.to_mapping(), "effective": effective}
        write_text(self.path / "experiment.yaml", yaml.safe_dump(content, sort_keys=False, allow_unicode=True))

    def read_experiment(self) -> tuple[dict[str, Any], Experiment, dict[str, Any]]:
        content = yaml.safe_load((self.path / "experiment.yaml").read_text(encoding="utf-8"))
        return content["asked"], Experiment.from_mapping(content["resolved"]), content["effective"]

    def write_environment(self, environment: dict[str, Any]) -> None:
        write_text(self.path / "environment.json", json.dumps(environment, indent=2, sort_keys=True) + "\n")

    def write_record(self, record: RunRecord) -> None:
        write_text(self.path / "record.json", record.to_json())

    def read_record(self) -> RunRecord | None:
        path = self.path / "record.json"
        return RunRecord.from_json(path.read_text(encoding="utf-8")) if path.is_file() else None
