"""The models to evaluate or compare with: a run, a folder with a pipeline, or a model by name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from foretune.choices.experiment import Experiment
from foretune.choices.model import resolve_model
from foretune.core.errors import UserError
from foretune.data.buckets import Bucket
from foretune.models.locating import locate, open_family
from foretune.models.trainable import TrainableFamily
from foretune.quality.naming import check_subject
from foretune.record.run_directory import RunDirectory
from foretune.training.sampling_setup import SamplingSetup
from foretune.training.trained_run import TrainedRun


@dataclass(frozen=True, kw_only=True)
class EvaluatedModel:
    """A model that can be loaded."""

    label: str
    key: str
    """Equal for equal weights: the run, or the folder."""
    model: str
    """The base model as requested."""
    family: TrainableFamily
    folder: Path
    """The pipeline around the denoiser: encoders, autoencoder, scheduler."""
    load: Callable[[SamplingSetup], nn.Module]
    """Loads the denoiser to the device."""
    run: RunDirectory | None = None
    experiment: Experiment | None = None
    trained_size: Bucket | None = None
    num_text_tokens: int | None = None


def open_subject(asked: str | Path) -> EvaluatedModel:
    """Opens the run at this path if there is one, else a model."""
    path = Path(asked)
    if (path / "experiment.yaml").is_file():
        return _run(RunDirectory.open(path))
    check_subject(asked)
    return _model(str(asked))


def base_of(subject: EvaluatedModel) -> EvaluatedModel | None:
    """Returns the model that a run started from; None if the subject is not a run."""
    if subject.run is None:
        return None
    return _from_folder(subject.folder, label=subject.model, model=subject.model)


def _run(run: RunDirectory) -> EvaluatedModel:
    _, experiment, effective = run.read_experiment()
    folder = Path(effective["model_folder"])
    if not folder.is_dir():
        raise UserError(f"The base model of {run.path} is gone: {folder} does not exist.")
    if not run.checkpoints.is_dir() or not any(run.checkpoints.iterdir()):
        raise UserError(f"{run.path} has no checkpoint yet. Run: foretune resume {run.path}")
    return EvaluatedModel(
        label=f"{experiment.name} ({experiment.method.kind})",
        key=str(run.path.resolve()),
        model=experiment.model,
        family=open_family(folder),
        folder=folder,
        load=lambda setup: TrainedRun.open(run).load(setup.dtype, setup.device, setup.quantize).method.denoiser,
        run=run,
        experiment=experiment,
        trained_size=Bucket.from_facts(effective),
        num_text_tokens=int(effective["num_text_tokens"]),
    )


def _model(asked: str) -> EvaluatedModel:
    folder, _ = locate(resolve_model(asked))
    return _from_folder(folder, label=asked, model=asked)


def _from_folder(folder: Path, *, label: str, model: str) -> EvaluatedModel:
    family = open_family(folder)
    return EvaluatedModel(
        label=label,
        key=str(folder.resolve()),
        model=model,
        family=family,
        folder=folder,
        load=lambda setup: setup.load_base(family, folder),
    )
