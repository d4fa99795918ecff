"""`foretune compare`: whether two runs, or sets of runs, differ at all, and by how much."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretune.cli.options import refuse_given
from foretune.core.errors import Mistakes

if TYPE_CHECKING:
    from foretune.analyse.run_data import RunData
    from foretune.config.readiness import Need

_EXPERIMENT_ENDINGS = (".yaml", ".yml")
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
    from foretune.analyse.comparing import Permission
    from foretune.analyse.comparing import compare as compare_runs
    from foretune.analyse.comparing_inference import compare_paths
    from foretune.cli.compare_text import as_mapping, print_compared

    if context.args:
        _refuse_more(str(a), str(b), *context.args)
    # With --run two files were asked for by name: that they differ is the question.
    permission = Permission(across_environments=across_environments, across_questions=across_questions or run)
    if run:
        runs_a, runs_b = _measured((a, b), benches, repeat, steps, synthetic)
        found = compare_runs(runs_a, runs_b, permission, is_paired=True)
    else:
        refuse_given(context, _OF_MEASURING)
        _refuse_files(a, b)
        found = compare_paths(a, b, permission)
    if as_json:
        typer.echo(json.dumps(as_mapping(found), indent=2))
    else:
        print_compared(found, str(a), str(b))


def _measured(
    files: tuple[Path, Path], benches: Path, num_repeats: int, num_steps: int, is_synthetic: bool
) -> "tuple[list[RunData], list[RunData]]":
    from foretune.cli.progress import ProgressObserver
    from foretune.cli.quiet import quieten
    from foretune.cli.starting import read_to_start

    needs: tuple[Need, ...] = ("adapters",) if is_synthetic else ("data", "adapters")
    mistakes = Mistakes()
    asked_a, asked_b = (mistakes.attempt(read_to_start, file, (), "Measuring", needs) for file in files)
    mistakes.raise_all()
    assert asked_a is not None, "nothing was wrong with it"
    assert asked_b is not None, "nothing was wrong with it"
    quieten()
    from foretune.analyse.run_data import runs_in
    from foretune.run.interleaved import measure_in_turns

    with ProgressObserver() as observer:
        made = measure_in_turns(
            asked_a, asked_b, benches, observer, num_repeats=num_repeats, num_steps=num_steps, is_synthetic=is_synthetic
        )
    typer.echo(f"Measured in turns: {made.a} and {made.b}", err=True)
    return runs_in(made.a), runs_in(made.b)


def _refuse_files(*paths: Path) -> None:
    from foretune.core.errors import UserError

    for path in paths:
        if path.is_file() and path.suffix in _EXPERIMENT_ENDINGS:
            raise UserError(
                f"{path} is an experiment file, which has nothing measured in it. "
                "Add --run to measure both now, or name run directories."
            )


def _refuse_more(*paths: str) -> None:
    from foretune.core.errors import UserError

    raise UserError(
        f"Two sides are compared, and these are {len(paths)}. Several at once, with what the best of many owes to "
        f"chance taken into account, are on one page: foretune report {' '.join(paths)}"
    )
