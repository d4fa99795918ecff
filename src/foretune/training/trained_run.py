"""The result of a run: what was trained, read from its newest checkpoint, alone or as part of its model.

An adapter alone needs no base. Whole models are put together tensor by tensor, so that host memory holds one of them at
a time, and pages of files.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter, Dora, Full
from foretune.choices.quantize import Quantize
from foretune.core.errors import UserError
from foretune.models.adapters import ADAPTER_NAME
from foretune.models.family import cast_as_loaded, part_folder
from foretune.models.locating import open_family
from foretune.models.stored_weights import StoredWeights
from foretune.models.trainable import TrainableFamily
from foretune.record.run_directory import RunDirectory
from foretune.step.building import attach_method
from foretune.step.methods import METHODS, AppliedMethod
from foretune.step.methods.adapter import AppliedAdapter
from foretune.training.base_loading import LoadRequest, load_base
from foretune.training.checkpoints import CheckpointStore
from foretune.training.state import shown_weights

CPU = torch.device("cpu")


@dataclass(frozen=True)
class TrainedModel:
    """A model with the result of a run in it."""

    family: TrainableFamily
    folder: Path
    method: AppliedMethod
    step: int
    experiment: Experiment


@dataclass(frozen=True)
class TrainedRun:
    """A run with a checkpoint."""

    run: RunDirectory
    experiment: Experiment
    """Without the adapters that it began with: they are in the checkpoint, or no part of the result."""
    effective: Mapping[str, Any]
    family: TrainableFamily
    folder: Path
    """The base."""
    step: int
    weights: Mapping[str, Tensor]
    """What was trained (its average, where there is one) by the names of the parameters, read one at a time."""

    @classmethod
    def open(cls, run: RunDirectory) -> "TrainedRun":
        """Raises `UserError` if the run's base or checkpoint is missing."""
        _, experiment, effective = run.read_experiment()
        folder = Path(effective["model_folder"])
        if not folder.is_dir():
            raise UserError(f"The base model of {run.path} is gone: {folder} does not exist.")
        components = ("weights", "optimizer", "ema") if experiment.train.ema else ("weights", "optimizer")
        found = CheckpointStore(run.checkpoints, experiment.save.keep).read_newest(components)
        if found is None:
            raise UserError(f"{run.path} has no checkpoint yet. Run: foretune resume {run.path}")
        checkpoint, _ = found
        weights = shown_weights(experiment.optimizer, checkpoint)
        alone = _without_read_adapters(experiment)
        return cls(run, alone, effective, open_family(folder), folder, checkpoint.step, weights)

    @property
    def is_adapter(self) -> bool:
        return isinstance(self.experiment.method, Adapter)

    def adapter(self, dtype: torch.dtype) -> AppliedAdapter:
        """Returns the adapter on layers without weights. Of the base, only DoRA needs the weights, as pages of files.

        Weights of adapters outside of the gradient are as the run drew them.
        """
        method = self._attached(self._layers(dtype))
        assert isinstance(method, AppliedAdapter), "a run that trains every weight has no adapter"
        cast_as_loaded(method.denoiser, dtype, all_buffers=True, only=ADAPTER_NAME)
        return method

    def load(
        self,
        dtype: torch.dtype,
        device: torch.device = CPU,
        quantize: Quantize | None = None,
        *,
        merge: bool = False,
        adapter_dtype: torch.dtype | None = None,
    ) -> TrainedModel:
        """Loads the model to a device, layer by layer: the base, quantised if requested, with what was trained.

        `adapter_dtype` is that of the adapter, if it is another.
        """
        request = LoadRequest(dtype=dtype, device=device, quantize=quantize or Quantize())
        if merge or not self.is_adapter:
            tensors = TrainedTensors(self, dtype, merge=merge)
            denoiser, _ = load_base(self.family, self.folder, request, stored=tensors)
            method = METHODS["full"](Full(), self.family, denoiser)
            if request.quantize.denoiser == "none":  # quantised weights have no gradient
                method.attach(self.experiment.train.seed, dtype)
        else:
            denoiser, _ = load_base(self.family, self.folder, request)
            method = self._attached(denoiser)
            cast_as_loaded(denoiser, adapter_dtype or dtype, all_buffers=True, only=ADAPTER_NAME)
        denoiser.eval()
        return TrainedModel(self.family, self.folder, method, self.step, self.experiment)

    def _attached(self, denoiser: nn.Module) -> AppliedMethod:
        method = attach_method(self.experiment, self.family, denoiser)
        # An average is fp32 even where the weights that were trained are not; it is rounded once, later.
        for parameter in method.trained().values():
            parameter.data = parameter.data.float()
        method.load_trained(self.weights)
        return method

    def _layers(self, dtype: torch.dtype) -> nn.Module:
        """Returns the denoiser's layers in their sizes; each weight is one number, unless the adapter reads it."""
        if isinstance(self.experiment.method, Dora):
            return self.base(dtype)
        denoiser = self.family.denoiser_on_meta(dtype)
        for module in denoiser.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    # On the CPU, so that the adapter's first weights are drawn as in training.
                    one = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
                    module._parameters[name] = nn.Parameter(one, requires_grad=False)
        return denoiser

    def base(self, dtype: torch.dtype) -> nn.Module:
        """Returns the base with the tensors of its files in their own dtypes, which takes no memory.

        A base whose files have other names for its tensors is loaded in `dtype`.
        """
        stored = StoredWeights.of(part_folder(self.folder, self.family.denoiser_part))
        denoiser = self.family.denoiser_on_meta(dtype)
        if stored is None or not stored.fit(denoiser):
            return self.family.load_denoiser(self.folder, dtype)
        for prefix, module in denoiser.named_modules():
            stored.put(module, f"{prefix}." if prefix else "", as_stored=True)
        return denoiser


class TrainedTensors(StoredWeights):
    """The tensors of a run's whole model: those that were trained, merged if it is an adapter, and the base's."""

    def __init__(self, trained: TrainedRun, dtype: torch.dtype, *, merge: bool) -> None:
        super().__init__({})
        self._trained, self._dtype = trained, dtype
        self.model = trained.family.denoiser_on_meta(dtype)
        """The model on meta."""
        self.forms: dict[str, Tensor] = dict(self.model.state_dict())
        """Shapes and dtypes by name, in the model's order."""
        self._base: dict[str, Tensor] | None = None
        self._adapter = trained.adapter(torch.float32) if merge else None
        self._merged: tuple[str, dict[str, Tensor]] = ("", {})

    def fit(self, model: nn.Module) -> bool:
        return self.forms.keys() == model.state_dict().keys()

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._of_adapted(name) if self._adapter is not None else self._trained.weights.get(name)
        tensor = self._of_base(name) if tensor is None else tensor
        form = self.forms[name]
        return tensor.detach().to(form.dtype) if tensor.is_floating_point() else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.forms)

    def __len__(self) -> int:
        return len(self.forms)

    def _of_base(self, name: str) -> Tensor:
        if self._base is None:
            self._base = dict(self._trained.base(self._dtype).state_dict())
        return self._base[name]

    def _of_adapted(self, name: str) -> Tensor | None:
        """Returns a tensor of a layer that is adapted, merged in fp32; None for others."""
        assert self._adapter is not None
        prefix, _, own = name.rpartition(".")
        layer = self._adapter.denoiser.get_submodule(prefix)
        if not isinstance(layer, BaseTunerLayer):
            return None
        if self._merged[0] != prefix:
            names = [other for other in self.forms if other.rpartition(".")[0] == prefix]
            base = {other.rpartition(".")[2]: self._of_base(other) for other in names}
            self._merged = (prefix, self._adapter.merged_layer(prefix, base))
        return self._merged[1][own]


def load_trained(run: RunDirectory, dtype: torch.dtype = torch.float32, *, merge: bool = False) -> TrainedModel:
    """Loads a run's model to the CPU, in one dtype; merged, if requested."""
    return TrainedRun.open(run).load(dtype, merge=merge)


def _without_read_adapters(experiment: Experiment) -> Experiment:
    if not isinstance(experiment.method, Adapter):
        return experiment
    alone = experiment.method.model_copy(update={"start_from": None, "training_adapter": None})
    return experiment.model_copy(update={"method": alone})
