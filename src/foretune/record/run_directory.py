"""The run directory: copying it is how results travel."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from foretune.choices.experiment import Experiment
from foretune.config.yaml_files import parse_written
from foretune.core.errors import UserError
from foretune.core.input_files import MOST_JSON_BYTES, RefusedFile, read_text
from foretune.core.values import Plan, RunRecord, Value, WrongFormat
from foretune.record.atomic import write_text
from foretune.record.redaction import redacted

V = TypeVar("V", bound=Value)
_MOST_EXPERIMENT_BYTES = 4 * 2**20


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

    def require_own_files(self) -> None:
        """Refuses to write where a file of the directory is a link: it would be written to whatever that leads to."""
        with os.scandir(self.path) as entries:
            strange = [entry for entry in entries if not (entry.is_file(follow_symlinks=False) or entry.is_dir())]
        if strange:
            raise RefusedFile(
                Path(strange[0].path), "is a link or a pipe, so nothing is written here. Replace it by a file."
            )

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
            content = parse_written(read_text(path, _MOST_EXPERIMENT_BYTES, within=self.path))
            return content["asked"], Experiment.from_mapping(content["resolved"]), content["effective"]
        except WrongFormat as error:
            raise WrongFormat(f"{path}: {error}") from error
        except RefusedFile as error:
            raise WrongFormat(str(error)) from error
        except (OSError, yaml.YAMLError, LookupError, TypeError) as error:
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
        return self._read(Plan, "plan.json")

    def write_record(self, record: RunRecord) -> None:
        write_text(self.path / "record.json", _json(record))

    def remove_record(self) -> None:
        """A run that goes on has no end yet."""
        (self.path / "record.json").unlink(missing_ok=True)

    def read_record(self) -> RunRecord | None:
        """None where the run was stopped before it could write one."""
        return self._read(RunRecord, "record.json")

    def _read(self, value: type[V], name: str) -> V | None:
        path = self.path / name
        if not os.path.lexists(path):
            return None
        try:
            return value.from_json(read_text(path, MOST_JSON_BYTES, within=self.path))
        except WrongFormat as error:
            raise WrongFormat(f"{path}: {error}") from error
        except RefusedFile as error:
            raise WrongFormat(str(error)) from error


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
