"""What the process of a trial is requested to do, and the run directory that it leaves."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from foretune.choices.study import StudyEvaluate
from foretune.config.reading import Asked, understand
from foretune.measure.bench_request import TrainingRequest
from foretune.record.run_directory import RunDirectory

WORKER = "foretune.sweeps.trial_worker"
"""The module that executors call."""
_BENCH_FILE = "bench.json"
INFERENCE = "inference"
"""The folder beside a run directory in which its denoising was measured."""


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """What to do, as plain data."""

    measure: Literal["train", "speed"]
    experiment: dict[str, Any]
    """As requested, before any default."""
    name: str
    """Of the experiment, where it has none."""
    folder: str
    """Where the run directory is made, and where an earlier one of this trial would be."""
    about: dict[str, Any] = field(default_factory=dict)
    """Which trial of which sweep or study it is, for the run directory."""
    plan: dict[str, Any] | None = None
    """The forecast, to be stored with the run."""
    is_synthetic: bool = False
    evaluation: dict[str, Any] | None = None
    """Fields of an EvaluationRequest; None for no evaluation."""
    inference: dict[str, Any] | None = None
    """Fields of InferenceChoices; None for no measurement of denoising."""

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)

    def to_measure(self) -> TrainingRequest:
        """For a trial that measures speed: the run directory is made in the trial's folder."""
        folder = Path(self.folder)
        return TrainingRequest(
            asked={**self.experiment, "name": self.name},
            directory=str(folder.parent),
            folder=folder.name,
            about=self.about,
            is_synthetic=self.is_synthetic,
            plan=self.plan,
        )

    def understood(self) -> Asked:
        return understand(self.experiment, source="The trial's experiment", name=self.name)


def newest_run(folder: Path) -> RunDirectory | None:
    """The run directory of a trial; None before there is one."""
    found = sorted(path.parent for path in folder.glob("*/experiment.yaml") if not path.parent.is_symlink())
    return RunDirectory.open(found[-1]) if found else None


def finished_run(folder: Path) -> RunDirectory | None:
    run = newest_run(folder)
    record = None if run is None else run.read_record()
    return run if record is not None and record.outcome.status == "finished" else None


def resumable_run(folder: Path) -> RunDirectory | None:
    run = newest_run(folder)
    record = None if run is None else run.read_record()
    if run is None or (record is not None and record.outcome.status != "interrupted"):
        return None
    return run if "data_fingerprint" in run.read_experiment()[2] else None


def is_evaluated(run: Path) -> bool:
    return (run / "quality" / "evaluation.json").is_file()


def is_inference_measured(folder: Path) -> bool:
    return bool(list((folder / INFERENCE).glob(f"*/*/{_BENCH_FILE}")))


def evaluation_fields(choice: StudyEvaluate, device: str) -> dict[str, Any]:
    """Fields of an EvaluationRequest."""
    return {
        "metrics": choice.metrics,
        "prompts": choice.prompts,
        "num_seeds": choice.seeds,
        "num_inference_steps": choice.num_inference_steps,
        "device": device,
    }
