"""A model on disk that is sampled: a base, with what a run trained, or with an exported adapter."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from foretune.choices.method import Adapter
from foretune.choices.model import resolve_model
from foretune.core.errors import Refused, UserError
from foretune.models.adapters import load_adapter, merge_adapters
from foretune.models.locating import locate, open_family
from foretune.models.trainable import TrainableFamily
from foretune.record.run_directory import RunDirectory
from foretune.step.quantizing.stand_ins import dense_stand_ins
from foretune.training.sampling_setup import SamplingSetup
from foretune.training.trained_run import TrainedRun


@dataclass(frozen=True, kw_only=True)
class SampledModel:
    """Where the parts of a model are."""

    folder: Path
    """The pipeline: encoders, autoencoder, scheduler, and the denoiser unless a run trained it."""
    run: Path | None = None
    """A run whose newest checkpoint is sampled."""
    adapter: Path | None = None
    """An exported adapter on the denoiser."""

    @classmethod
    def of_run(cls, path: Path) -> "SampledModel":
        """Raises if the run's base is gone, or if there is no checkpoint."""
        run = RunDirectory.open(path)
        folder = Path(run.read_experiment()[2]["model_folder"])
        if not folder.is_dir():
            raise UserError(f"The base model of {run.path} is gone: {folder} does not exist.")
        if not run.checkpoints.is_dir() or not any(run.checkpoints.iterdir()):
            raise UserError(f"{run.path} has no checkpoint yet. Run: foretune resume {run.path}")
        return cls(folder=folder, run=run.path)

    @classmethod
    def find(cls, asked: str, adapter: Path | None = None) -> "SampledModel":
        """The run at this path if there is one, else a model by name, hub id or folder."""
        path = Path(asked)
        if (path / "experiment.yaml").is_file():
            found = cls.of_run(path)
            return cls(folder=found.folder, run=found.run, adapter=adapter)
        return cls(folder=locate(resolve_model(asked))[0], adapter=adapter)

    @cached_property
    def family(self) -> TrainableFamily:
        return open_family(self.folder)

    @cached_property
    def has_adapter(self) -> bool:
        """Whether there is something to merge."""
        return self.adapter is not None or self._is_run_of_adapter

    @cached_property
    def _is_run_of_adapter(self) -> bool:
        return self.run is not None and isinstance(RunDirectory(self.run).read_experiment()[1].method, Adapter)

    def load_denoiser(self, setup: SamplingSetup) -> nn.Module:
        """Loads the denoiser to the device, with what the run trained; quantised and merged if requested."""
        if self.run is None:
            return setup.load_base(self.family, self.folder)
        trained = TrainedRun.open(RunDirectory(self.run))
        merge = setup.merge and self._is_run_of_adapter
        return trained.load(setup.dtype, setup.device, setup.quantize, merge=merge).method.denoiser

    def attach_adapter(self, setup: SamplingSetup, pipeline: Any) -> None:
        """Loads the exported adapter into a pipeline around the denoiser, if there is one; merged if requested."""
        if self.adapter is None:
            return
        denoiser: nn.Module = getattr(pipeline, self.family.denoiser_part)
        with dense_stand_ins(denoiser):
            load_adapter(self.family, pipeline, self.adapter)
        if setup.merge:
            merge_adapters(denoiser)


def require_adapter_to_merge(models: Sequence[SampledModel]) -> None:
    """Raises if none of the models has an adapter."""
    if not any(model.has_adapter for model in models):
        raise Refused(
            "There is no adapter to merge: a base has none, and a run of full fine-tuning trained the weights "
            "themselves. Leave out merge, or give an adapter or a run that trained one"
        )
