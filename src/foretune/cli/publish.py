"""`foretune publish`: a run's export with its samples and a model card, on the Hub."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def publish(
    run: Annotated[Path, typer.Argument(help="A run directory: runs/<experiment>/<run id>.")],
    to: Annotated[str, typer.Option("--to", help="The repository: owner/name. It is made if it does not exist.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write RUN/publish and print the card; upload nothing.")
    ] = False,
    private: Annotated[bool, typer.Option("--private/--public", help="Who sees a new repository.")] = True,
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        typer.Option("--precision", help="dtype of the weights. [default: as the run computes]"),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Make the adapter part of the model: a whole pipeline is published.")
    ] = False,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Also publish files that links of the model folder lead to.")
    ] = False,
    licence: Annotated[
        str | None, typer.Option("--licence", help="Of the base model, where the catalogue does not know it.")
    ] = None,
) -> None:
    """Publish a run on the Hugging Face Hub. Example: foretune publish runs/quick/latest --to me/my-lora --dry-run"""
    from foretune.api.publish import publish as publish_run
    from foretune.cli.status import StatusObserver

    with StatusObserver("Publishing") as observer:
        published = publish_run(
            run,
            to,
            dry_run=dry_run,
            private=private,
            precision=precision,
            merge=merge,
            follow_links=follow_links,
            licence=licence,
            observer=observer,
        )
    typer.echo(str(published))
