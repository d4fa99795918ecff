"""`foretune export`: files that other programs load, and the proof that they do."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    run: Annotated[Path, typer.Argument(help="A run directory: runs/<experiment>/<run id>.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Folder to write to, or a .safetensors file; if left out RUN/export or RUN/FORMAT."
        ),
    ] = None,
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        typer.Option("--precision", help="dtype of the weights. [default: as the run computes]"),
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        Literal["diffusers", "comfyui", "kohya", "single-file"],
        typer.Option(
            "--format",
            help="An adapter for ComfyUI or for kohya's trainers (sd-scripts, musubi-tuner), or a whole model in one "
            "file of its original layout.",
        ),
    ] = "diffusers",
    merge: Annotated[
        bool, typer.Option("--merge", help="Make the adapter part of the model: a whole model is written.")
    ] = False,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Also copy files that links of the model folder lead to elsewhere.")
    ] = False,
    check_only: Annotated[
        bool, typer.Option("--check-only", help="Compare an export that was written before with the run.")
    ] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"] | None,
        typer.Option("--device", help="Where images are compared. [default: as the run]"),
    ] = None,
) -> None:
    """Export a run for diffusers, ComfyUI or kohya's trainers, and check that it gives the trained model back."""
    from foretune.api.export import export as export_run
    from foretune.cli.status import StatusObserver

    with StatusObserver("Exporting") as observer:
        exported = export_run(
            run,
            output,
            precision=precision,
            format=format,
            merge=merge,
            follow_links=follow_links,
            check_only=check_only,
            device=device,
            observer=observer,
        )
    typer.echo(str(exported.proof))
    if (command := getattr(exported.proof, "how_to_compare", None)) is not None:
        typer.echo(f"To compare them where there is more memory: {command}")
    if exported.note is not None:
        typer.echo(exported.note)
    typer.echo(f"Exported {exported.path}. To use it:\n{exported.how_to_load}")
