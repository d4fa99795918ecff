"""`foretune export`: files that other programs load, and the proof that they do."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from foretune.cli.extras import require
from foretune.cli.files import require_writable
from foretune.cli.quiet import quieten


def export(
    run: Annotated[Path, typer.Argument(help="A run directory: runs/<experiment>/<run id>.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write to; if left out RUN/export, or RUN/merged.")
    ] = None,
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"], typer.Option("--precision", help="Numbers in the files.")
    ] = "fp32",
    merge: Annotated[
        bool, typer.Option("--merge", help="Make the adapter part of the model: a whole pipeline is written.")
    ] = False,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Also copy files that links of the model folder lead to elsewhere.")
    ] = False,
) -> None:
    """Export a run for diffusers pipelines; a clean process then reloads it and compares images."""
    from foretune.record.run_directory import RunDirectory

    directory = RunDirectory.open(run)
    target = output or directory.path / ("merged" if merge else "export")
    require_writable(target)
    require("train", "Exporting")
    quieten()
    from foretune.run.exporting import ExportBroken
    from foretune.run.exporting import export as write_export
    from foretune.step.precision import PrecisionPolicy

    typer.echo(f"Exporting to {target}, then reloading it in a clean process ...", err=True)
    dtype = PrecisionPolicy(precision).compute_dtype
    exported = write_export(directory, target, dtype, merge=merge, follow_links=follow_links)
    proof = exported.proof
    typer.echo(
        f"{proof.num_consumed} of {proof.num_tensors} tensors arrived bit for bit; "
        f"same-seed images differ by {proof.max_pixel_difference:g} at most"
    )
    if not proof.holds:
        raise ExportBroken(f"What was exported to {target} does not give the trained model back. Do not use it.")
    if exported.note is not None:
        typer.echo(exported.note)
    typer.echo(f"Exported {target}. Load it with:\n{exported.how_to_load}")
