"""Runs as they lie on the disk: a run directory, a bench directory, or a folder of either."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from foretune.choices.experiment import Experiment
from foretune.core.errors import UserError
from foretune.core.values import RunRecord
from foretune.data.buckets import Bucket
from foretune.record.events import read_events
from foretune.record.run_directory import RunDirectory

_EXPERIMENT = "experiment.yaml"
_BENCH = "bench.json"
_INCOMPLETE = "stopped without warning"
RunKind = Literal["training", "bench", "profile"]


@dataclass(frozen=True, kw_only=True)
class RunData:
    """One run: what was asked, where it ran, and every raw number of its steps."""

    path: Path
    run_id: str
    record: RunRecord | None
    """None where the run was stopped before it could write one."""
    experiment: Experiment
    """As resolved, with every default."""
    effective: dict[str, Any]
    """What followed from the experiment when it ran."""
    environment: dict[str, Any]
    """The fingerprint; empty where the run never came to write it."""
    step_times_s: tuple[float, ...]
    """Raw, warm-up included, in the order of the steps."""
    losses: tuple[float, ...]
    phases_s: tuple[dict[str, float], ...]
    """Seconds by phase of each step; empty mappings where they were not timed."""
    started_s: float | None
    """Seconds since 1970 when its first step began."""
    end: str
    """How it ended: the status of its record."""
    pauses_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds between its steps by phase: validation, saving; of all parts of a resumed run."""
    held_out_losses: tuple[tuple[int, float], ...] = ()
    """(step, loss) as validated; step 0 is the base model."""

    @property
    def speed_times_s(self) -> tuple[float, ...]:
        """The steps that no profiler made slower."""
        return tuple(seconds for step, seconds in enumerate(self.step_times_s) if self.experiment.shows_speed(step))

    @property
    def size_text(self) -> str | None:
        """The size of its largest bucket; None where the run never came to write it."""
        is_known = "size_px" in self.effective or "resolution_px" in self.effective
        return Bucket.from_facts(self.effective).text if is_known else None

    @property
    def kind_of_samples(self) -> str:
        return "clips" if (self.effective.get("num_frames") or 1) > 1 else "images"

    @property
    def has_finished(self) -> bool:
        return self.end == "finished"

    @property
    def kind(self) -> RunKind:
        """A training, or a few steps of one that were made to time them (bench) or to look inside (profile)."""
        return run_kind(self.effective)

    @property
    def question_hash(self) -> str | None:
        return None if self.record is None else self.record.question_hash

    @property
    def steps_done(self) -> int:
        """Optimizer steps that it made; of a run without a record, those in its log."""
        return len(self.losses) if self.record is None else self.record.outcome.steps_done

    @property
    def samples_per_step(self) -> int:
        return self.experiment.samples_per_step()


def run_kind(effective: Mapping[str, Any]) -> RunKind:
    """The kind of a run, by the facts of which each kind records one that no other does."""
    return "bench" if "is_synthetic" in effective else "profile" if "is_profile" in effective else "training"


def runs_in(path: Path) -> list[RunData]:
    """Every run of a run directory, a bench directory, or a folder of either, in the order they started."""
    if not path.exists():
        raise UserError(f"{path} does not exist. A run's path has the form runs/<experiment>/<run id>.")
    if not path.is_dir():
        raise UserError(f"{path} is a file. Name the run or bench directory that it lies in: {path.parent}")
    found = [read_run(directory) for directory in sorted(_run_directories(path.resolve()))]
    if not found:
        raise UserError(
            f"There is no run in {path}: no folder below it has an {_EXPERIMENT}. "
            "`foretune bench` and `foretune train` print the paths of what they make."
        )
    return sorted(found, key=lambda run: (math.inf if run.started_s is None else run.started_s, run.run_id))


def gather(paths: Sequence[Path]) -> list[RunData]:
    """The runs of all folders, each once."""
    found: dict[Path, RunData] = {}
    for path in paths:
        for run in runs_in(path):
            found.setdefault(run.path.resolve(), run)
    return list(found.values())


def has_runs(path: Path) -> bool:
    """Whether there is a run directory at or below a path."""
    return path.is_dir() and next(_run_directories(path.resolve()), None) is not None


def read_run(path: Path) -> RunData:
    """One run directory."""
    directory = RunDirectory.open(path)
    _, experiment, effective = directory.read_experiment()
    record = directory.read_record()
    try:
        log = _read_log(_events(directory), {} if record is None else record.environment)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{directory.events} is damaged ({type(error).__name__}: {error}), so what it says is not used. "
            f"foretune check {path} reports more; to continue without this run, move it away."
        ) from error
    return RunData(
        path=path,
        run_id=directory.run_id,
        record=record,
        experiment=experiment,
        effective=effective,
        end=_INCOMPLETE if record is None else record.outcome.status,
        **log,
    )


def _read_log(events: Iterator[dict[str, Any]], environment: dict[str, Any]) -> dict[str, Any]:
    """The fields of a run that its events tell."""
    steps: dict[int, dict[str, Any]] = {}
    started_s: float | None = None
    pauses_s: dict[str, float] = {}
    held_out: dict[int, float] = {}
    for event in events:
        if event["kind"] == "step":
            # After a resume, the last entry of a step counts.
            steps[event["step"]] = event
        elif event["kind"] == "paused":
            for name, seconds in event["phases_s"].items():
                pauses_s[name] = pauses_s.get(name, 0.0) + seconds
        elif event["kind"] == "validated" and event["held_out_loss"] is not None:
            held_out[event["step"]] = float(event["held_out_loss"])
        elif event["kind"] == "started":
            environment = event.get("environment", environment)
            started_s = event["time_s"] if started_s is None else started_s
    ordered = [steps[step] for step in sorted(steps)]
    return {
        "environment": environment,
        "step_times_s": tuple(map(_step_s, ordered)),
        "losses": tuple(float(event.get("loss", math.nan)) for event in ordered),
        "phases_s": tuple(dict(event.get("phases_s") or {}) for event in ordered),
        "started_s": started_s,
        "pauses_s": pauses_s,
        "held_out_losses": tuple(sorted(held_out.items())),
    }


def _step_s(event: Mapping[str, Any]) -> float:
    step_s = float(event["step_s"])
    if not 0 < step_s < math.inf:
        raise ValueError(f"step {event['step']} takes {step_s} s")
    return step_s


def _events(directory: RunDirectory) -> Iterator[dict[str, Any]]:
    return read_events(directory.events) if os.path.lexists(directory.events) else iter(())


def _run_directories(path: Path) -> Iterator[Path]:
    """Below a bench only its own repeats: what it measured beside them is not what was asked for."""
    if (path / _EXPERIMENT).is_file():
        yield path
    elif (path / _BENCH).is_file():
        yield from (inner.parent for inner in (path / "runs").glob(f"*/{_EXPERIMENT}") if not inner.parent.is_symlink())
    else:
        # `latest` leads to a run that is there under its own name, too.
        with os.scandir(path) as entries:
            folders = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
        for folder in folders:
            yield from _run_directories(folder)
