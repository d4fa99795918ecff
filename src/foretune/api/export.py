"""`export`: files that other programs load, and the proof that they do."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from foretune.api.process_state import torch_kept
from foretune.api.run import RunLike, path_of
from foretune.api.start import import_libraries
from foretune.catalog.tool_names import ExportFormat
from foretune.core.errors import Refused
from foretune.core.extras import require
from foretune.core.observer import Observer
from foretune.core.output_files import require_writable

if TYPE_CHECKING:
    from foretune.training.exporting import Exported

FilePrecision = Literal["fp32", "bf16", "fp16"]


def export(
    run: RunLike,
    output: str | Path | None = None,
    *,
    precision: FilePrecision | None = None,
    format: ExportFormat = "diffusers",  # noqa: A002 - as on the command line
    merge: bool = False,
    follow_links: bool = False,
    check_only: bool = False,
    device: Literal["auto", "cpu", "cuda", "mps"] | None = None,
    observer: Observer | None = None,
) -> "Exported[Any]":
    """Exports a run for diffusers or another program, and proves that it gives the trained model back.

    Files are read back and compared with the checkpoint; an adapter is exported without loading its base. A clean
    process then loads an export for diffusers and samples an image of at most 256 px, which must be that of the trained
    model; the base is quantised as in training if it does not fit otherwise. Where that does not fit either, the export
    is written, and the proof says that images were not compared. Files for other programs are read back by the rules of
    the program: an adapter must change every layer as peft does, and every tensor of a model must be in what diffusers
    loads from its file. Nothing is written if a comparison fails.

    Args:
        run: a run directory.
        output: folder to write to, or a file ending in .safetensors for the formats of one file. If left out:
            RUN/export, or RUN/merged; for other formats RUN/ and the name of the format.
        precision: dtype of the files; as the run computes if left out.
        format: `diffusers`; `comfyui` or `kohya`, an adapter as one file for ComfyUI or for sd-scripts and
            musubi-tuner; `single-file`, a whole model as one file in its original layout.
        merge: make the adapter part of the model: a whole pipeline or model is written.
        follow_links: also copy files that links of the model folder lead to elsewhere.
        check_only: compare an export for diffusers that was written before with the run; write nothing.
        device: where images are compared; that of the run if left out.
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
    if check_only and format != "diffusers":
        raise Refused("Images are compared for exports for diffusers only. Leave out the format to check an export.")
    what = "Reading" if check_only else "Exporting to"
    observer.message(f"{what} {target}{'' if check_only else ', then reading it again'} ...")
    import_libraries(observer, "foretune.training.exporting", device=device or "auto")
    from foretune.step.precision import PrecisionPolicy
    from foretune.training.export_files import ExportBroken
    from foretune.training.exporting import ExportRequest
    from foretune.training.exporting import export as write_export
    from foretune.training.for_tools.export_file import export_file

    dtype = None if precision is None else PrecisionPolicy(precision).compute_dtype
    with torch_kept():
        exported: Exported[Any]
        if format == "diffusers":
            request = ExportRequest(
                dtype=dtype, merge=merge, follow_links=follow_links, check_only=check_only, device=device
            )
            exported = write_export(directory, target, request)
        else:
            exported = export_file(directory, target, format, dtype, merge=merge)
    if not exported.proof.holds:
        raise ExportBroken(
            f"The export does not give the trained model back ({exported.proof}). Nothing was written to {target}."
        )
    return exported
