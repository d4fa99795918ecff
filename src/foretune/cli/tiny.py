"""`foretune tiny`: a complete small pipeline on disk, for developers."""

from pathlib import Path
from typing import Annotated

import typer

from foretune.cli.extras import require
from foretune.cli.quiet import quieten
from foretune.core.errors import UserError


def tiny(
    family: Annotated[str, typer.Argument(help="ddpm, sd3 or flux.")],
    directory: Annotated[Path, typer.Argument(help="Where to write it.")],
    variant: Annotated[str | None, typer.Option("--variant", help="Such as schnell for flux, 3 for sd3.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of its random weights.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that has files.")] = False,
) -> None:
    """Write a complete tiny pipeline with random weights in the diffusers layout (for tests and trials)."""
    from foretune.choices.tiny import tiny_variant

    chosen = tiny_variant(family, variant)
    if not force and directory.is_dir() and any(directory.iterdir()):
        # It might hold a model that took days to download, or one of another family, with which this would be mixed.
        raise UserError(f"{directory} has files already. Choose another folder, or type --force to write over them")
    require("train", "Writing a tiny pipeline")
    quieten()
    from foretune.models.tiny import write_tiny_pipeline

    path = write_tiny_pipeline(family, directory, seed=seed, variant=chosen)
    typer.echo(f"Wrote a tiny {family} pipeline to {path}. Use it as `model: {path}`.")
