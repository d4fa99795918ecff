"""What every sink has in common: the names of the numbers, and what is sent of a run at its start and end."""

from pathlib import Path
from typing import Any

from foretune.core.observer import Observer, StepReport
from foretune.record.events import read_events
from foretune.record.redaction import redacted
from foretune.record.run_directory import RunDirectory


class Tracker(Observer):
    """Opened on the directory of a run; it sends what stands there."""

    def __init__(self, directory: Path) -> None:
        raise NotImplementedError


def step_scalars(report: StepReport) -> dict[str, float]:
    """A step's numbers by the name they have in every sink."""
    found = {
        "train/loss": report.loss,
        "train/lr": report.lr,
        "train/step_s": report.step_s,
        "train/samples_per_s": report.samples_per_step / max(report.step_s, 1e-9),
    }
    if report.grad_norm is not None:
        found["train/grad_norm"] = report.grad_norm
    found |= {f"phases_s/{name}": seconds for name, seconds in report.phases_s.items()}
    return found | {f"memory_bytes/{place}": float(held) for place, held in report.memory_bytes.items()}


def settings_of(directory: Path) -> tuple[str, str, dict[str, Any]]:
    """The experiment's name, the run's id, and the experiment as resolved, one entry for each setting.

    Nothing of the environment is among them: variables may hold secrets. What looks like one is taken out.
    """
    run = RunDirectory.open(directory)
    _, experiment, effective = run.read_experiment()
    settings = dict(_flat("", redacted(experiment.to_mapping())))
    for name in ("question_hash", "num_steps", "num_trained_params", "num_params"):
        if effective.get(name) is not None:
            settings[f"effective.{name}"] = effective[name]
    return experiment.name, run.run_id, settings


def status_of(directory: Path) -> str:
    """How the run ended, as its log says; "killed" where it says nothing."""
    path = RunDirectory(directory).events
    last = None
    for event in read_events(path) if path.is_file() else ():
        last = event
    return str(last["status"]) if last is not None and last["kind"] == "ended" else "killed"


def _flat(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _flat(f"{path}.{key}" if path else str(key), item)]
    return [] if value is None else [(path, value)]
