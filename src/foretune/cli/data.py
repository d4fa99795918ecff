"""`foretune data`: folders and shards to train on."""

from pathlib import Path
from typing import Annotated

import typer

from foretune.cli.encode_data import encode_data

app = typer.Typer(help="Make and check training data.", no_args_is_help=True)
_GIB = 2**30


@app.callback()
def _group() -> None:
    """Make and check training data."""


@app.command("import")
def import_archive(
    archive: Annotated[Path, typer.Argument(help="A zip or tar (also .gz, .bz2, .xz, .zst).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to make.")],
    max_gib: Annotated[
        float, typer.Option("--max-gib", min=0.001, help="Refuse an archive that unpacks to more than this, in GiB.")
    ] = 1024.0,
) -> None:
    """Take images and captions out of an archive. Example: foretune data import pictures.zip --output pictures"""
    from foretune.api.import_archive import import_archive as import_from
    from foretune.cli.progress import ProgressObserver

    try:
        with ProgressObserver() as observer:
            imported = import_from(archive, output, most_bytes=round(max_gib * _GIB), observer=observer)
    except KeyboardInterrupt as interrupt:
        typer.secho("Interrupted: nothing was imported.", err=True)
        raise typer.Exit(130) from interrupt
    typer.echo(str(imported))


@app.command("pack")
def pack_data(
    source: Annotated[Path, typer.Argument(help="A folder of images, or an experiment file: its data are packed.")],
    output: Annotated[str, typer.Argument(help="An empty folder, or an s3:// address.")],
    kind: Annotated[str, typer.Option(help="What the folder is: folder, clips, cifar10, huggingface.")] = "folder",
    shard_mib: Annotated[float, typer.Option("--shard-mib", min=0.01, help="Size of a shard at most, in MiB.")] = 256.0,
    shard_samples: Annotated[int, typer.Option("--shard-samples", min=1, help="Samples of a shard at most.")] = 10_000,
    in_order: Annotated[
        bool, typer.Option("--in-order", help="Keep the order of the source; otherwise it is shuffled once.")
    ] = False,
) -> None:
    """Pack images and captions into WebDataset shards. Example: foretune data pack pictures s3://bucket/pictures"""
    from foretune.api.pack_data import PACKED_KINDS
    from foretune.api.pack_data import pack_data as pack
    from foretune.cli.progress import ProgressObserver
    from foretune.core.errors import UnknownName

    if kind not in PACKED_KINDS:
        raise UnknownName("kind of data", kind, PACKED_KINDS)
    try:
        with ProgressObserver() as observer:
            packed = pack(
                source,
                output,
                kind=kind,
                shard_mib=shard_mib,
                shard_samples=shard_samples,
                shuffled=not in_order,
                observer=observer,
            )
    except KeyboardInterrupt as interrupt:
        typer.secho("Interrupted: the same command continues.", err=True)
        raise typer.Exit(130) from interrupt
    typer.echo(str(packed))


@app.command("index")
def index_data(
    folder: Annotated[Path, typer.Argument(help="A folder of tars that webdataset or img2dataset wrote.")],
) -> None:
    """Index shards that other programs wrote, where they are. Example: foretune data index laion"""
    from foretune.api.pack_data import index_data as index
    from foretune.cli.progress import ProgressObserver

    with ProgressObserver() as observer:
        indexed = index(folder, observer=observer)
    typer.echo(str(indexed))


@app.command("check")
def check_data(
    place: Annotated[str, typer.Argument(metavar="SET", help="The folder or address of a packed set.")],
) -> None:
    """Compare a packed set with its checksums. Example: foretune data check s3://bucket/pictures"""
    from foretune.api.pack_data import check_data as check
    from foretune.cli.progress import ProgressObserver

    with ProgressObserver() as observer:
        found = check(place, observer=observer)
    typer.echo(str(found))
    if found.faults:
        raise typer.Exit(1)


app.command("encode")(encode_data)
