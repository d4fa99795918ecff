"""The models to evaluate or compare with: a run, a folder with a pipeline, or a model by name."""

from dataclasses import dataclass
from pathlib import Path

from foretune.choices.experiment import Experiment
from foretune.data.buckets import Bucket
from foretune.models.trainable import TrainableFamily
from foretune.quality.naming import check_subject
from foretune.record.run_directory import RunDirectory
from foretune.training.sampled_model import SampledModel


@dataclass(frozen=True, kw_only=True)
class EvaluatedModel:
    """A model that can be loaded."""

    label: str
    key: str
    """Equal for equal weights: the run, or the folder."""
    model: str
    """The base model as requested."""
    files: SampledModel
    run: RunDirectory | None = None
    experiment: Experiment | None = None
    trained_size: Bucket | None = None
    num_text_tokens: int | None = None

    @property
    def family(self) -> TrainableFamily:
        return self.files.family

    @property
    def folder(self) -> Path:
        """The pipeline around the denoiser: encoders, autoencoder, scheduler."""
        return self.files.folder


def open_subject(asked: str | Path) -> EvaluatedModel:
    """Opens the run at this path if there is one, else a model."""
    path = Path(asked)
    if (path / "experiment.yaml").is_file():
        return _run(RunDirectory.open(path))
    check_subject(asked)
    return _model(SampledModel.find(str(asked)), str(asked))


def base_of(subject: EvaluatedModel) -> EvaluatedModel | None:
    """Returns the model that a run started from; None if the subject is not a run."""
    if subject.run is None:
        return None
    return _model(SampledModel(folder=subject.folder), subject.model)


def _run(run: RunDirectory) -> EvaluatedModel:
    files = SampledModel.of_run(run.path)
    _, experiment, effective = run.read_experiment()
    return EvaluatedModel(
        label=f"{experiment.name} ({experiment.method.kind})",
        key=str(run.path.resolve()),
        model=experiment.model,
        files=files,
        run=run,
        experiment=experiment,
        trained_size=Bucket.from_facts(effective),
        num_text_tokens=int(effective["num_text_tokens"]),
    )


def _model(files: SampledModel, name: str) -> EvaluatedModel:
    return EvaluatedModel(label=name, key=str(files.folder.resolve()), model=name, files=files)
