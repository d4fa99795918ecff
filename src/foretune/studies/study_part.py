"""One part of a study in a process of its own: a training, the rest of one, or the evaluation of one.

`python -m foretune.studies.study_part` is the process; it reads the request from its input.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from foretune.choices.running import Parallel
from foretune.config.reading import Asked, understand
from foretune.core.observer import Observer
from foretune.core.values import Plan, RunRecord
from foretune.record.run_directory import RunDirectory
from foretune.training.launching import launch_once
from foretune.training.several import resume_in_ranks, train_in_ranks
from foretune.training.train import Trained

_RANK_WORKER = "foretune.studies.study_ranks"


@dataclass(frozen=True, kw_only=True)
class PartRequest:
    """What the process is asked to do."""

    worker: ClassVar[str] = "foretune.studies.study_part"
    do: Literal["train", "resume", "evaluate"]
    run: str | None = None
    """The run directory that is gone on with, or evaluated."""
    asked: dict[str, Any] = field(default_factory=dict)
    """The experiment as it was asked."""
    folder: str = ""
    """Where a new run directory is made."""
    about: dict[str, Any] = field(default_factory=dict)
    """Which part of which study it is."""
    plan: dict[str, Any] | None = None
    """The forecast, to be kept with the run."""
    evaluation: dict[str, Any] = field(default_factory=dict)
    """Fields of an EvaluationRequest."""

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)


def do_part(request: PartRequest, observer: Observer) -> dict[str, Any]:
    """Does it, and names the run directory and how its training ended."""
    if request.do == "evaluate":
        assert request.run is not None, "there is something to evaluate"
        return _evaluated(request, Path(request.run), observer)
    parallel = _parallel(request)
    if parallel.devices == 1:
        trained = train_part(request, observer)
        return _answer(trained.run, trained.record)
    return _answer(*launch_once("A study", parallel, _RANK_WORKER, request.to_mapping(), observer))


def train_part(request: PartRequest, observer: Observer) -> Trained:
    """Trains in this process and those that were started beside it."""
    if request.do == "resume":
        return resume_in_ranks(_run_of(request), observer)
    folder, plan = Path(request.folder), None if request.plan is None else Plan.from_mapping(request.plan)
    about = {"study": request.about}
    return train_in_ranks(_asked(request), folder.parent, observer, plan, folder_name=folder.name, about=about)


def _parallel(request: PartRequest) -> Parallel:
    experiment = _run_of(request).read_experiment()[1] if request.do == "resume" else _asked(request).experiment
    return experiment.parallel


def _run_of(request: PartRequest) -> RunDirectory:
    assert request.run is not None, "there is something to go on with"
    return RunDirectory.open(Path(request.run))


def _asked(request: PartRequest) -> Asked:
    return understand(request.asked, source="The study's experiment", name=request.about["name"])


def _answer(run: RunDirectory, record: RunRecord) -> dict[str, Any]:
    return {"run": str(run.path), "status": record.outcome.status, "reason": record.outcome.reason}


def _evaluated(request: PartRequest, run: Path, observer: Observer) -> dict[str, Any]:
    from foretune.quality.evaluating import evaluate_run
    from foretune.quality.request import EvaluationRequest

    # On the way to this process tuples became lists.
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in request.evaluation.items()
    }
    evaluate_run(run, EvaluationRequest(**fields), observer)
    return {"run": str(run), "status": "finished", "reason": None}


if __name__ == "__main__":
    from foretune.measure.worker_output import answer_once

    answer_once(lambda question, teller: do_part(PartRequest(**question), teller))
