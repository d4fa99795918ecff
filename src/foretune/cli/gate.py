"""`foretune gate`: a regression gate for continuous integration, by exit code."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from foretune.analyse.comparing import Compared, ComparedRuns, Permission
    from foretune.analyse.gating import GateAnswer


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
    from foretune.analyse.comparing import Permission
    from foretune.analyse.gating import judge
    from foretune.analyse.quantities import SPEED, STEP_TIME
    from foretune.core.errors import UserError

    allowed = _share(max_slowdown)
    found = _compared(baseline, candidate, Permission(across_environments=across_environments))
    step_time, speed = found.quantity(STEP_TIME), found.quantity(SPEED)
    if step_time is None:
        raise UserError(f"There are no step times in {baseline} or {candidate}, so there is nothing to judge.")
    answer = judge(
        step_time.decision,
        allowed,
        speed=None if speed is None else speed.decision,
        num_unfinished=found.num_unfinished_b,
        is_strict=strict,
    )
    if as_json:
        mapping = {
            "verdict": answer.verdict,
            "exit_code": answer.exit_code,
            "reason": answer.reason,
            "max_slowdown": allowed,
            "num_more_runs": answer.num_more,
            "comparison": step_time.comparison.to_mapping(),
            "speed": None if speed is None else speed.comparison.to_mapping(),
            "left_out": list(found.left_out),
        }
        typer.echo(json.dumps(mapping, indent=2))
        raise typer.Exit(answer.exit_code)
    _say(found, step_time, speed, answer)
    raise typer.Exit(answer.exit_code)


def _compared(baseline: Path, candidate: Path, permission: "Permission") -> "ComparedRuns":
    """What could not be read for a reason of ours ends with code 2, too: 1 says slower, and nothing else."""
    import traceback

    from foretune.analyse.comparing_inference import compare_paths
    from foretune.core.errors import UserError

    places = sorted((baseline.resolve(), candidate.resolve()), key=lambda place: len(place.parts))
    if places[1].is_relative_to(places[0]):
        raise UserError(
            f"{baseline} and {candidate} hold the same runs, which are never slower than themselves. "
            "Name two folders of which none is inside the other."
        )
    try:
        return compare_paths(baseline, candidate, permission, names=("the baseline", "the candidate"))
    except UserError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise UserError("The gate could not judge because of the fault above. Please report it.") from error


def _say(found: "ComparedRuns", step_time: "Compared", speed: "Compared | None", answer: "GateAnswer") -> None:
    from foretune.cli.compare_text import made_of, ratio_with_interval
    from foretune.core.units import share_text

    typer.echo(f"baseline:  {made_of(step_time.a)}")
    typer.echo(f"candidate: {made_of(step_time.b)}")
    judged = [one for one in (step_time, speed) if one is not None]
    for one in judged:
        ratio, interval = ratio_with_interval(one.comparison)
        confidence = share_text(one.decision.confidence)
        typer.echo(f"{one.comparison.quantity}, candidate / baseline: {ratio}, {confidence} interval {interval}")
    remarks = [warning for one in judged for warning in one.comparison.warnings]
    for remark in dict.fromkeys((*found.left_out, *remarks)):
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
    from foretune.core.errors import UserError

    stripped = text.strip()
    try:
        share = float(stripped.removesuffix("%")) / (100 if stripped.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise UserError(f"--max-slowdown {text!r} is not a share. Write --max-slowdown 5% or --max-slowdown 0.05")
    return share
