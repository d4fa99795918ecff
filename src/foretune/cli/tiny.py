"""`foretune tiny`: a complete small pipeline on disk, for developers."""

from pathlib import Path
from typing import Annotated

import typer


def tiny(
    family: Annotated[str, typer.Argument(help="One of those that can be trained, as in `foretune list models`.")],
    directory: Annotated[Path, typer.Argument(help="Where to write it.")],
    variant: Annotated[str | None, typer.Option("--variant", help="Such as schnell for flux, 3 for sd3.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of its random weights.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that has files.")] = False,
) -> None:
    """Write a complete tiny pipeline with random weights in the diffusers layout (for tests and trials)."""
    from foretune.api.tiny import tiny as write_tiny
    from foretune.cli.status import StatusObserver

    with StatusObserver("Writing a tiny pipeline") as observer:
        path = write_tiny(family, directory, variant=variant, seed=seed, force=force, observer=observer)
    typer.echo(f"Wrote a tiny {family} pipeline to {path}. Use it as `model: {path}`.")
