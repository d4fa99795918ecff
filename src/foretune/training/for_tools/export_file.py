"""From a run to one file for another program: an adapter, or a whole model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from foretune.catalog.tool_names import ExportFormat
from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter
from foretune.core.errors import Refused, UserError
from foretune.core.output_files import beside, move
from foretune.data.buckets import Bucket
from foretune.record.run_directory import RunDirectory
from foretune.step.methods.adapter import AppliedAdapter
from foretune.training.exporting import Exported, load_trained, quantised_note
from foretune.training.for_tools.adapter_file import LayerProof, write_adapter_file

_WHERE = {
    "comfyui": "  Copy it to ComfyUI/models/loras and select it in the node Load LoRA.",
    "kohya": "  sd-scripts and musubi-tuner: --network_weights {path} to go on training, --lora_weight to sample.",
}


def export_file(
    run: RunDirectory,
    output: Path,
    file_format: ExportFormat,
    dtype: torch.dtype = torch.float32,
    *,
    merge: bool = False,
) -> Exported[LayerProof]:
    """Writes a run's result as one file for another program, and proves what is in it.

    `output` is the file, or a folder to write it to.
    """
    _, experiment, effective = run.read_experiment()
    _require_adapter(run, experiment, file_format, merge=merge)
    target = file_in(output, experiment, file_format)
    if target.exists():
        raise UserError(f"{target} exists. Choose another place: foretune export {run.path} --output FILE")
    trained = load_trained(run, dtype)
    assert isinstance(trained.method, AppliedAdapter)
    about = {"modelspec.title": experiment.name, "modelspec.resolution": _resolution(effective)}
    with beside(target) as unproved:
        proof = write_adapter_file(trained.method, file_format, unproved, about)
        if proof.holds:
            move(unproved, target)
    return Exported(target, proof, _WHERE[file_format].format(path=target), quantised_note(experiment))


def file_in(output: Path, experiment: Experiment, file_format: ExportFormat) -> Path:
    """Returns the file to write: the one that was named, or one in the folder that was, named after the experiment."""
    if output.suffix == ".safetensors":
        return output
    return output / f"{experiment.name}-{experiment.method.kind}-{file_format}.safetensors"


def _require_adapter(run: RunDirectory, experiment: Experiment, file_format: ExportFormat, *, merge: bool) -> None:
    if not isinstance(experiment.method, Adapter):
        raise Refused(
            f"{run.path} trained every weight, so there is no adapter for {file_format}. "
            f"Run: foretune export {run.path} --format single-file"
        )
    if merge:
        raise Refused(
            f"--merge writes a whole model, and --format {file_format} an adapter. "
            f"Run: foretune export {run.path} --merge --format single-file"
        )


def _resolution(effective: Mapping[str, Any]) -> str:
    size = Bucket.from_facts(effective)
    return f"{size.width_px}x{size.height_px}"
