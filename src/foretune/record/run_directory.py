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
from foretune.core.values import Plan, RunRecord, Value, WrongFormat
from foretune.record.atomic import write_text
from foretune.record.redaction import redacted


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run, and the files that are written once."""

    path: Path

    @classmethod
    def create(cls, runs: Path, name: str) -> "RunDirectory":
        """A new directory whose name says when; random digits keep many starts in one second apart."""
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}"
        path = runs / name / run_id
        try:
            path.mkdir(parents=True)
            for part in ("checkpoints", "samples"):
                (path / part).mkdir()
        except OSError as error:
            reason = error.strerror or error
            raise UserError(
                f"The run directory {path} cannot be made: {reason}. Put it elsewhere, for example: "
                "foretune train EXPERIMENT.yaml --runs DIR"
            ) from error
        _point_latest_at(path)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        if not (path / "experiment.yaml").is_file():
            raise UserError(
                f"{path} is not a run directory: it has no experiment.yaml. A run's path has the form "
                "runs/<experiment>/<run id>; `foretune train` prints it, and runs/<experiment>/latest is the newest."
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
    def profile(self) -> Path:
        return self.path / "profile"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def lock(self) -> Path:
        return self.path / "run.lock"

    def write_experiment(self, as_asked: dict[str, Any], experiment: Experiment, effective: dict[str, Any]) -> None:
        """As asked, as understood with every default, and what followed from it: nothing silent."""
        content = redacted({"asked": as_asked, "resolved": experiment.to_mapping(), "effective": effective})
        write_text(self.path / "experiment.yaml", yaml.safe_dump(content, sort_keys=False, allow_unicode=True))

    def read_experiment(self) -> tuple[dict[str, Any], Experiment, dict[str, Any]]:
        """What `write_experiment` was given."""
        path = self.path / "experiment.yaml"
        try:
            content = _read_yaml(path.read_text(encoding="utf-8"))
            return content["asked"], Experiment.from_mapping(content["resolved"]), content["effective"]
        except WrongFormat as error:
            raise WrongFormat(f"{path}: {error}") from error
        except (OSError, UnicodeDecodeError, yaml.YAMLError, LookupError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise WrongFormat(f"{path} is not the experiment of a run, or is damaged: {reason}") from error

    def write_environment(self, environment: dict[str, Any]) -> None:
        """A fingerprint, which holds no secret; taking more out here would change its hash."""
        write_text(self.path / "environment.json", json.dumps(environment, indent=2, sort_keys=True) + "\n")

    def write_plan(self, plan: Plan | None) -> None:
        """The forecast, before the first step; nothing where there is none."""
        if plan is not None:
            write_text(self.path / "plan.json", _json(plan))

    def read_plan(self) -> Plan | None:
        """What `write_plan` was given."""
        path = self.path / "plan.json"
        if not path.is_file():
            return None
        try:
            return Plan.from_json(path.read_text(encoding="utf-8"))
        except (WrongFormat, UnicodeDecodeError) as error:
            raise WrongFormat(f"{path}: {error}") from error

    def write_record(self, record: RunRecord) -> None:
        write_text(self.path / "record.json", _json(record))

    def remove_record(self) -> None:
        """A run that goes on has no end yet."""
        (self.path / "record.json").unlink(missing_ok=True)

    def read_record(self) -> RunRecord | None:
        """None where the run was stopped before it could write one."""
        path = self.path / "record.json"
        if not path.is_file():
            return None
        try:
            return RunRecord.from_json(path.read_text(encoding="utf-8"))
        except (WrongFormat, UnicodeDecodeError) as error:
            raise WrongFormat(f"{path}: {error}") from error


def _read_yaml(text: str) -> Any:
    """By the reader in C, where the library was built with it: ten times as fast, which counts for many runs."""
    return yaml.load(text, Loader=yaml.CSafeLoader) if yaml.__with_libyaml__ else yaml.safe_load(text)


def _json(value: Value) -> str:
    return json.dumps(redacted(value.to_mapping()), indent=2, allow_nan=False) + "\n"


def _point_latest_at(path: Path) -> None:
    """`latest` beside the runs leads to the newest, so that nobody has to copy its name."""
    temporary = path.parent / f".latest-{path.name}"
    try:
        temporary.symlink_to(path.name)
        temporary.replace(path.parent / "latest")
    except OSError:
        # No symbolic links here, or a folder of that name already: the run's own name is printed all the same.
        temporary.unlink(missing_ok=True)
