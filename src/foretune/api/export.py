"""`export`: files that other programs load, and the proof that they do."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from foretune.api.process_state import torch_kept
from foretune.api.run import RunLike, path_of
from foretune.api.start import import_libraries
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
    merge: bool = False,
    follow_links: bool = False,
    observer: Observer | None = None,
) -> "Exported":
    """Exports a run for diffusers pipelines; a clean process then reloads it and compares images.

    Args:
        run: a run directory.
        output: folder to write to; RUN/export if left out, or RUN/merged.
        precision: dtype of the files.
        merge: make the adapter part of the model: a whole pipeline is written.
        follow_links: also copy files that links of the model folder lead to elsewhere.
        observer: receives progress.

    Raises:
        ExportBroken: what was exported does not give the trained model back.
    """
    from foretune.record.run_directory import RunDirectory

    directory = RunDirectory.open(path_of(run))
    target = Path(output) if output is not None else directory.path / ("merged" if merge else "export")
    require_writable(target)
    require("train", "Exporting")
    observer = observer or Observer()
    observer.message(f"Exporting to {target}, then reloading it in a clean process ...")
    import_libraries(observer, "foretune.training.exporting")
    from foretune.step.precision import PrecisionPolicy
    from foretune.training.exporting import ExportBroken
    from foretune.training.exporting import export as write_export

    dtype = PrecisionPolicy(precision).compute_dtype
    with torch_kept():
        exported = write_export(directory, target, dtype, merge=merge, follow_links=follow_links)
    if not exported.proof.holds:
        raise ExportBroken(
            f"What was exported to {target} does not give the trained model back ({exported.proof}). Do not use it."
        )
    return exported
