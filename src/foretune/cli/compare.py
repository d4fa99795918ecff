"""`foretune compare`: whether two runs, or sets of runs, differ at all, and by how much."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretune.cli.options import refuse_given
from foretune.core.errors import UserError

if TYPE_CHECKING:
    from foretune.api.compare import Interleaved

_OF_MEASURING = dict.fromkeys(
    ("repeat", "steps", "synthetic", "benches"), "is for measuring now, and these runs are measured. Leave it out"
)


def compare(
    context: typer.Context,
    a: Annotated[Path, typer.Argument(help="A run, a bench, or a folder of them; with --run, an experiment file.")],
    b: Annotated[Path, typer.Argument(help="What is compared with it: ratios are b / a.")],
    across_environments: Annotated[
        bool, typer.Option("--across-environments", help="Compare even if machines or versions differ, with a warning.")
    ] = False,
    across_questions: Annotated[
        bool, typer.Option("--across-questions", help="Compare even if the experiments differ, with a warning.")
    ] = False,
    run: Annotated[
        bool, typer.Option("--run", help="A and B are experiment files: measure both now, in turns, then compare.")
    ] = False,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="With --run: fresh processes of each.")] = 10,
    steps: Annotated[int, typer.Option("--steps", min=1, help="With --run: steps of each.")] = 50,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="With --run: random data in place of the experiment's.")
    ] = False,
    benches: Annotated[Path, typer.Option("--benches", help="With --run: where the runs are kept.")] = Path("benches"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare. Example: foretune compare benches/lora/20261115-101500-9f3a benches/lora/20261115-113000-01ab"""
    if context.args:
        _refuse_more(str(a), str(b), *context.args)
    if run:
        made = _measured(a, b, repeat, steps, benches, is_synthetic=synthetic, across_environments=across_environments)
        found = made.compared
    else:
        from foretune.api.compare import compare as compare_runs

        refuse_given(context, _OF_MEASURING)
        found = compare_runs(a, b, across_environments=across_environments, across_questions=across_questions)
    from foretune.reports.terminal.comparison import as_mapping, print_compared

    if as_json:
        typer.echo(json.dumps(as_mapping(found), indent=2))
    else:
        print_compared(found, str(a), str(b))


def _measured(
    a: Path, b: Path, repeat: int, steps: int, benches: Path, *, is_synthetic: bool, across_environments: bool
) -> "Interleaved":
    from foretune.api.compare import measure_and_compare
    from foretune.cli.progress import ProgressObserver

    with ProgressObserver() as observer:
        made = measure_and_compare(
            a,
            b,
            steps=steps,
            repeat=repeat,
            synthetic=is_synthetic,
            across_environments=across_environments,
            benches=benches,
            observer=observer,
        )
    typer.echo(f"Measured in turns: {made.a} and {made.b}", err=True)
    return made


def _refuse_more(*paths: str) -> None:
    raise UserError(
        f"Two sides are compared, and these are {len(paths)}. Several at once, with what the best of many owes to "
        f"chance taken into account, are on one page: foretune report {' '.join(paths)}"
    )
