"""One part of a study in a process of its own: a training, the rest of one, or the evaluation of one.

`python -m foretune.studies.study_part` is the process; it reads the request from its input.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from foretune.config.reading import understand
from foretune.core.observer import Observer
from foretune.core.values import Plan
from foretune.record.run_directory import RunDirectory
from foretune.training.train import resume, train


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
    if request.do == "resume":
        assert request.run is not None, "there is something to go on with"
        trained = resume(RunDirectory.open(Path(request.run)), observer)
    else:
        folder = Path(request.folder)
        asked = understand(request.asked, source="The study's experiment", name=request.about["name"])
        plan = None if request.plan is None else Plan.from_mapping(request.plan)
        trained = train(asked, folder.parent, observer, plan, folder_name=folder.name, about={"study": request.about})
    outcome = trained.record.outcome
    return {"run": str(trained.run.path), "status": outcome.status, "reason": outcome.reason}


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
