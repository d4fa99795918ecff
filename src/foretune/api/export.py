"""`export`: files that other programs load, and the proof that they do."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from foretune.api.process_state import torch_kept
from foretune.api.run import RunLike, path_of
from foretune.api.start import import_libraries
from foretune.catalog.tool_names import ExportFormat
from foretune.core.extras import require
from foretune.core.observer import Observer
from foretune.core.output_files import require_writable

if TYPE_CHECKING:
    from foretune.training.exporting import Exported


def export(
    run: RunLike,
    output: str | Path | None = None,
    *,
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    format: ExportFormat = "diffusers",  # noqa: A002 - as on the command line
    merge: bool = False,
    follow_links: bool = False,
    observer: Observer | None = None,
) -> "Exported[Any]":
    """Exports a run for diffusers or another program, and proves that it gives the trained model back.

    An export for diffusers is reloaded by a clean process, which compares images. Files for other programs are read
    back by the rules of the program: an adapter must change every layer as peft does, and every tensor of a model must
    be in what diffusers loads from its file. Nothing is written if this fails.

    Args:
        run: a run directory.
        output: folder to write to, or a file ending in .safetensors for the formats of one file. If left out:
            RUN/export, or RUN/merged; for other formats RUN/ and the name of the format.
        precision: dtype of the files.
        format: `diffusers`; `comfyui` or `kohya`, an adapter as one file for ComfyUI or for sd-scripts and
            musubi-tuner; `single-file`, a whole model as one file in its original layout.
        merge: make the adapter part of the model: a whole pipeline or model is written.
        follow_links: also copy files that links of the model folder lead to elsewhere.
        observer: receives progress.

    Raises:
        ExportBroken: what was exported does not give the trained model back.
        Refused: the other program cannot load this kind of result.
    """
    from foretune.record.run_directory import RunDirectory

    directory = RunDirectory.open(path_of(run))
    usual = ("merged" if merge else "export") if format == "diffusers" else format
    target = Path(output) if output is not None else directory.path / usual
    require_writable(target)
    require("train", "Exporting")
    observer = observer or Observer()
    observer.message(f"Exporting to {target}, then reading it again ...")
    import_libraries(observer, "foretune.training.exporting")
    from foretune.step.precision import PrecisionPolicy
    from foretune.training.exporting import ExportBroken
    from foretune.training.exporting import export as write_export
    from foretune.training.for_tools.export_file import export_file

    dtype = PrecisionPolicy(precision).compute_dtype
    with torch_kept():
        exported: Exported[Any]
        if format == "diffusers":
            exported = write_export(directory, target, dtype, merge=merge, follow_links=follow_links)
        else:
            exported = export_file(directory, target, format, dtype, merge=merge)
    if not exported.proof.holds:
        raise ExportBroken(
            f"The export does not give the trained model back ({exported.proof}). Nothing was written to {target}."
        )
    return exported
