"""The files of an export for diffusers: written from a run's checkpoint, read back and compared with it."""

from pathlib import Path

import torch

from foretune.core.errors import UserError
from foretune.models.adapters import loads_by_pipeline, read_adapter, save_adapter
from foretune.models.copying import copy_model
from foretune.step.methods.adapter import described
from foretune.training.streamed_files import num_equal, same_bits, write_model
from foretune.training.trained_run import TrainedRun, TrainedTensors


class ExportBroken(UserError):
    """The exported files do not give the trained model back."""

    exit_code = 1


class AdapterFiles:
    """An adapter in the format of the family's pipeline, or in peft's. The base is not loaded."""

    def __init__(self, trained: TrainedRun, dtype: torch.dtype) -> None:
        self.dtype, self._family = dtype, trained.family
        method = trained.adapter(dtype)
        self._config, self._weights = method.peft_config(), method.weights()

    @property
    def num_tensors(self) -> int:
        return len(self._weights)

    def write(self, directory: Path, *, follow_links: bool) -> None:
        save_adapter(self._family, directory, self._weights, self._config)

    def num_read_back(self, directory: Path) -> int:
        """Counts the tensors that are in the file bit for bit. Raises if it has other settings."""
        try:
            stored = read_adapter(self._family, directory)
        except UserError as error:
            raise ExportBroken(f"The exported adapter cannot be read: {error} Nothing was written.") from error
        if described(stored.config) != described(self._config):
            raise ExportBroken(
                f"The exported adapter has the settings {described(stored.config)}, and the run "
                f"{described(self._config)}. Nothing was written."
            )
        return sum(
            name in stored.weights and same_bits(stored.weights[name], weight) for name, weight in self._weights.items()
        )

    def loading(self) -> str:
        """Returns Python that loads the export, with {base} and {export} for where the two are."""
        pipeline = f"  pipe = diffusers.{self._family.pipeline_class().__name__}.from_pretrained({{base}})"
        if loads_by_pipeline(self._family, self._config):
            return f"{pipeline}\n  pipe.load_lora_weights({{export}})"
        part = f"pipe.{self._family.denoiser_part}"
        return f"{pipeline}\n  peft.PeftModel.from_pretrained({part}, {{export}}, autocast_adapter_dtype=False)"

    def close(self) -> None:
        self._weights = {}


class PipelineFiles:
    """The base's folder with the denoiser replaced: it loads by itself, anywhere."""

    def __init__(self, trained: TrainedRun, dtype: torch.dtype, *, merge: bool) -> None:
        self.dtype, self._family, self._folder = dtype, trained.family, trained.folder
        self._tensors: TrainedTensors | None = TrainedTensors(trained, dtype, merge=merge)
        self.num_tensors = len(self._tensors.forms)

    def write(self, directory: Path, *, follow_links: bool) -> None:
        part = self._family.denoiser_part

        def leaves_out(entry: Path) -> bool:
            is_file = not (entry.is_dir() or entry.suffix == ".json")
            is_other = entry.name == part or entry.name.startswith(".") or is_file
            return entry.parent == self._folder and is_other

        copy_model(self._folder, directory, leaves_out, follow_links=follow_links)
        save_denoiser(self._open(), directory / part)

    def num_read_back(self, directory: Path) -> int:
        """Counts the tensors that are in the denoiser's files bit for bit, one after the other."""
        tensors = self._open()
        paths = sorted((directory / self._family.denoiser_part).glob("*.safetensors"))
        return num_equal(paths, tensors.forms, tensors.__getitem__)

    def loading(self) -> str:
        """Returns Python that loads the export, with {export} for where it is."""
        return f"  pipe = diffusers.{self._family.pipeline_class().__name__}.from_pretrained({{export}})"

    def close(self) -> None:
        self._tensors = None

    def _open(self) -> TrainedTensors:
        assert self._tensors is not None, "it is closed"
        return self._tensors


def save_denoiser(tensors: TrainedTensors, directory: Path) -> None:
    """Writes a denoiser as diffusers saves it, tensor by tensor."""
    write_model(directory, tensors.forms, tensors.__getitem__)
    tensors.model.save_config(directory)  # type: ignore[operator]
