"""`foretune gate`: a regression gate for continuous integration, by exit code."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretune.core.errors import UserError
from foretune.core.units import share_text

if TYPE_CHECKING:
    from foretune.api.compare import Gated


def gate(
    baseline: Annotated[Path, typer.Argument(help="Runs or benches of what is known to be good.")],
    candidate: Annotated[Path, typer.Argument(help="Runs or benches of what is to be judged.")],
    max_slowdown: Annotated[
        str, typer.Option("--max-slowdown", help="How much longer a step may take: 5% or 0.05.", metavar="SHARE")
    ] = "5%",
    strict: Annotated[
        bool, typer.Option("--strict", help="Pass only if a slowdown beyond the limit is excluded.")
    ] = False,
    across_environments: Annotated[
        bool, typer.Option("--across-environments", help="Judge even if machines or versions differ, with a warning.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")] = False,
) -> None:
    """Judge a candidate's speed. Exit codes: 0 passes, 1 slower, 2 cannot be compared, 3 inconclusive."""
    gated = _gated(baseline, candidate, _share(max_slowdown), strict=strict, across_environments=across_environments)
    answer = gated.answer
    if as_json:
        mapping = {
            "verdict": answer.verdict,
            "exit_code": answer.exit_code,
            "reason": answer.reason,
            "max_slowdown": gated.max_slowdown,
            "num_more_runs": answer.num_more,
            "comparison": gated.step_time.comparison.to_mapping(),
            "speed": None if gated.speed is None else gated.speed.comparison.to_mapping(),
            "left_out": list(gated.compared.left_out),
        }
        typer.echo(json.dumps(mapping, indent=2))
    else:
        _print(gated)
    raise typer.Exit(answer.exit_code)


def _gated(baseline: Path, candidate: Path, max_slowdown: float, *, strict: bool, across_environments: bool) -> "Gated":
    """What could not be read for a reason of ours ends with code 2, too: 1 says slower, and nothing else."""
    import traceback

    from foretune.api.compare import gate as judge

    try:
        return judge(
            baseline, candidate, max_slowdown=max_slowdown, strict=strict, across_environments=across_environments
        )
    except UserError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise UserError("The gate could not judge because of the fault above. Please report it.") from error


def _print(gated: "Gated") -> None:
    from foretune.reports.terminal.comparison import made_of, ratio_with_interval

    answer = gated.answer
    typer.echo(f"baseline:  {made_of(gated.step_time.a)}")
    typer.echo(f"candidate: {made_of(gated.step_time.b)}")
    judged = [one for one in (gated.step_time, gated.speed) if one is not None]
    for one in judged:
        ratio, interval = ratio_with_interval(one.comparison)
        confidence = share_text(one.decision.confidence)
        typer.echo(f"{one.comparison.quantity}, candidate / baseline: {ratio}, {confidence} interval {interval}")
    remarks = [warning for one in judged for warning in one.comparison.warnings]
    for remark in dict.fromkeys((*gated.compared.left_out, *remarks)):
        typer.echo(f"! {remark}")
    colour = {"pass": "green", "slower": "red"}.get(answer.verdict, "yellow")
    typer.secho(f"{answer.verdict}: {answer.reason}", fg=colour)
    if answer.num_more is not None:
        typer.echo(
            f"About {answer.num_more} more runs of each side would settle it. Run for each: "
            f"foretune bench EXPERIMENT.yaml --repeat {answer.num_more}"
        )


def _share(text: str) -> float:
    """5%, 5 % or 0.05; a bare 5 could mean either."""
    stripped = text.strip()
    try:
        share = float(stripped.removesuffix("%")) / (100 if stripped.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise UserError(f"--max-slowdown {text!r} is not a share. Write --max-slowdown 5% or --max-slowdown 0.05")
    return share
