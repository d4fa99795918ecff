"""`foretune backtest`: what the plan says about published measurements, against what was published."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from foretune.planner.exam.scoring import Score
    from foretune.planner.traces import Traces


def backtest(
    data: Annotated[
        Path | None, typer.Option("--data", help="A CSV file with the catalogue's columns; without it, the catalogue.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Record steps the package has no trace of; takes minutes, and is kept.")
    ] = False,
) -> None:
    """Rerun the exam: predicted memory against published, by source and by model, beside a trivial baseline."""
    from foretune import catalog
    from foretune.cli.backtest_text import print_score
    from foretune.planner.exam.reading import read_rows
    from foretune.planner.exam.sitting import Sitting

    rows, unreadable = (tuple(catalog.measurements().values()), ()) if data is None else read_rows(data)
    with _progress() as report:
        sitting = Sitting(
            _live_traces(report) if live else None,
            lambda model, done, total: report(f"{model} ({done} of {total} rows)"),
        )
        score: Score = sitting.score(rows, unreadable)
    if as_json:
        typer.echo(json.dumps(score.as_dict(), indent=2))
    else:
        print_score(score)


def _live_traces(report: Callable[[str], None]) -> "Callable[[str], Traces]":
    """The package's traces; forms that are not among them are recorded, and kept in the user's cache."""
    from foretune.choices.model import resolve_model
    from foretune.cli.plan import live_source
    from foretune.planner.traces import Traces

    live = live_source(report, needed=True)
    known: dict[str, Traces] = {}

    def find(model: str) -> Traces:
        if model not in known:
            known[model] = Traces(None if live is None else live.tracer(resolve_model(model)))
        return known[model]

    return find


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    from rich.console import Console

    with Console(stderr=True, highlight=False).status("Sitting the exam ...") as status:
        yield lambda text: status.update(f"Sitting the exam: {text} ...")
