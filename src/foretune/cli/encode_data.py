"""`foretune data encode`: latents and text embeddings, once, by many workers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretune.cli.executor_options import ExecutorOptions

if TYPE_CHECKING:
    from foretune.api.encode_data import EncodedData, PartWatch
    from foretune.core.observer import Observer

_MOST_NAMED = 5


def encode_data(
    experiment: Annotated[Path, typer.Argument(help="An experiment file: its data are encoded as it would train.")],
    output: Annotated[str, typer.Argument(help="A folder, or an s3:// address.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[key=value ...]", help="Change settings: data.resolution=512.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Parts that are encoded at once.")] = 1,
    executor: Annotated[str, typer.Option("--executor", help="Where: local, slurm or ray.")] = "local",
    option: ExecutorOptions = None,
    part_size: Annotated[int, typer.Option("--part-size", min=1, help="Samples of a part, which is a task.")] = 2048,
    shard_mib: Annotated[float, typer.Option("--shard-mib", min=0.01, help="Size of a shard at most, in MiB.")] = 256.0,
    tasks: Annotated[
        Path | None, typer.Option("--tasks", help="Folder for logs and unfinished work. Default: OUTPUT.tasks.")
    ] = None,
) -> None:
    """Encode images and captions once, for any number of trainings. The same command continues one that was stopped.

    Example: foretune data encode experiment.yaml s3://bucket/encoded --workers 4
    """
    from foretune.api.encode_data import encode_data as encode
    from foretune.cli.progress import ProgressObserver

    try:
        with ProgressObserver() as observer:
            encoded = encode(
                experiment,
                output,
                overrides or (),
                workers=workers,
                executor=executor,
                options=option or (),
                part_size=part_size,
                shard_mib=shard_mib,
                tasks=tasks,
                observer=observer,
                watcher=_watcher(observer),
            )
    except KeyboardInterrupt as interrupt:
        typer.secho("Interrupted. What is encoded is kept: the same command continues.", err=True)
        raise typer.Exit(130) from interrupt
    _print(encoded, experiment)
    if encoded.failed:
        raise typer.Exit(1)


def _watcher(observer: "Observer") -> "PartWatch":
    """A line for each part that ends, and progress with samples/s and time left."""
    from foretune.reports.terminal.encoding import part_line, progress_line

    def watch(result: Any, progress: Any) -> None:
        if result is not None:
            observer.message(part_line(result, progress))
        else:
            observer.preparing(progress_line(progress), progress.num_done, progress.num_samples)

    return watch


def _print(encoded: "EncodedData", experiment: Path) -> None:
    from foretune.reports.terminal.encoding import summary_text

    for result in encoded.failed[:_MOST_NAMED]:
        typer.echo(f"Part {result.name}: {result.outcome.kind}. {result.outcome.reason} Log: {result.folder}/log.txt")
    if encoded.failed:
        typer.echo(f"{len(encoded.failed)} parts failed; what is finished is kept. Run the same command again.")
        return
    typer.echo(summary_text(encoded))
    typer.echo(f"Train on it: foretune train {experiment} data.encoded={encoded.place}")
