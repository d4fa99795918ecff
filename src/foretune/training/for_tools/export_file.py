"""From a run to one file for another program: an adapter, or a whole model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from foretune.catalog.tool_names import ExportFormat, single_file
from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter
from foretune.core.errors import Refused, UserError
from foretune.core.output_files import beside, move
from foretune.data.buckets import Bucket
from foretune.record.run_directory import RunDirectory
from foretune.step.precision import PrecisionPolicy
from foretune.training.exporting import Exported, quantised_note
from foretune.training.for_tools.adapter_file import LayerProof, write_adapter_file
from foretune.training.for_tools.single_file import FileProof, WholeModel, write_single_file
from foretune.training.trained_run import TrainedRun, TrainedTensors


def export_file(
    run: RunDirectory,
    output: Path,
    file_format: ExportFormat,
    dtype: torch.dtype | None = None,
    *,
    merge: bool = False,
) -> Exported[LayerProof | FileProof]:
    """Writes a run's result as one file for another program, and proves what is in it.

    `output` is the file, or a folder to write it to. `dtype` is as the run computes if left out. An adapter is written
    without loading its base, and a whole model tensor by tensor.
    """
    _, experiment, effective = run.read_experiment()
    _require_fitting(run, experiment, file_format, merge=merge)
    target = file_in(output, experiment, file_format)
    if target.exists():
        raise UserError(f"{target} exists. Choose another place: foretune export {run.path} --output FILE")
    trained = TrainedRun.open(run)
    dtype = dtype or PrecisionPolicy.of(experiment.train).compute_dtype
    about = {"modelspec.title": experiment.name, "modelspec.resolution": _resolution(effective)}
    with beside(target) as unproved:
        proof: LayerProof | FileProof
        if file_format == "single-file":
            tensors = TrainedTensors(trained, dtype, merge=merge)
            model = WholeModel(trained.family, trained.folder, tensors.model, tensors.__getitem__)
            proof = write_single_file(model, unproved, dtype, about)
        else:
            proof = write_adapter_file(trained.adapter(dtype), file_format, unproved, about)
        if proof.holds:
            move(unproved, target)
    return Exported(target, proof, _where(trained.family.name, file_format), note=quantised_note(experiment))


def file_in(output: Path, experiment: Experiment, file_format: ExportFormat) -> Path:
    """Returns the file to write: the one that was named, or one in the folder that was, named after the experiment."""
    if output.suffix == ".safetensors":
        return output
    return output / f"{experiment.name}-{experiment.method.kind}-{file_format}.safetensors"


def _require_fitting(run: RunDirectory, experiment: Experiment, file_format: ExportFormat, *, merge: bool) -> None:
    """Raises if the format is for whole models and there is an adapter, or the other way round."""
    is_adapter = isinstance(experiment.method, Adapter)
    if merge and not is_adapter:
        raise Refused(
            f"{run.path} trained every weight: there is no adapter to merge. "
            f"Run: foretune export {run.path} --format {file_format}"
        )
    if file_format == "single-file":
        if is_adapter and not merge:
            raise Refused(
                f"A single file is a whole model, and {run.path} an adapter. "
                f"Run: foretune export {run.path} --merge --format single-file"
            )
    elif not is_adapter:
        raise Refused(
            f"{run.path} trained every weight: there is no adapter for {file_format}. "
            f"Run: foretune export {run.path} --format single-file"
        )
    elif merge:
        raise Refused(
            f"Merging writes a whole model, and the format {file_format} is of adapters. "
            f"Run: foretune export {run.path} --merge --format single-file"
        )


def _where(family: str, file_format: ExportFormat) -> str:
    if file_format == "comfyui":
        return "  Copy it to ComfyUI/models/loras and select it in the node Load LoRA."
    if file_format == "kohya":
        return "  Give it to sd-scripts or musubi-tuner as network weights."
    form = single_file(family)
    assert form is not None
    return f"  Copy it to ComfyUI/models/{form.folder}."


def _resolution(effective: Mapping[str, Any]) -> str:
    size = Bucket.from_facts(effective)
    return f"{size.width_px}x{size.height_px}"
