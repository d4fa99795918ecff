"""`foretune`: the list of verbs, and how errors reach a person."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from foretune.cli import (
    backtest,
    bench,
    calibrate,
    check,
    compare,
    data,
    demo,
    doctor,
    evaluate,
    export,
    fetch,
    gate,
    import_accelerate,
    import_checkpoint,
    importing,
    init,
    listing,
    plan,
    profile,
    publish,
    report,
    resume,
    sample,
    schema,
    study,
    sweep,
    tiny,
    train,
    watch,
)
from foretune.core.disk_faults import disk_fault
from foretune.core.errors import AmbiguousName, UserError
from foretune.core.input_files import shown_lines
from foretune.core.library_noise import hush
from foretune.core.thread_waiting import wait_passively

app = typer.Typer(
    name="foretune",
    help="Know before you fine-tune: plan, run and measure the fine-tuning of diffusion models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Help in boxes would double the time it takes to start.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from foretune import __version__

        typer.echo(f"foretune {__version__}")
        raise typer.Exit


app.command("demo", short_help="See it all in three minutes, on a CPU.")(demo.demo)
app.command("init", short_help="Write an experiment file to start from.")(init.init)
app.command("import", short_help="Translate another trainer's configuration.")(importing.import_config)
app.command("import-accelerate", short_help="Translate a config of Hugging Face accelerate.")(
    import_accelerate.import_accelerate
)
app.command("import-checkpoint", short_help="Turn a single-file checkpoint into a model folder.")(
    import_checkpoint.import_checkpoint
)
app.command("plan", short_help="Report what fits, before anything is downloaded.")(plan.plan)
app.command("backtest", short_help="Compare plans with published measurements.")(backtest.backtest)
app.command("fetch", short_help="Download and verify what training a model needs.")(fetch.fetch)
app.command("train", short_help="Train a model, by its name or by an experiment file.")(train.train)
app.command("bench", short_help="Measure training or inference speed.")(bench.bench)
app.command("profile", short_help="Profile a few steps and report the bottleneck.")(profile.profile)
# More than two are refused by the verb itself, which knows what to type instead.
app.command("compare", short_help="Test whether two sets of runs differ.", context_settings={"allow_extra_args": True})(
    compare.compare
)
app.command("report", short_help="Put the results of runs on one page.")(report.report)
app.command("watch", short_help="Show what runs now, what it costs and how long it takes.")(watch.watch)
app.command("gate", short_help="Fail where a candidate is slower.")(gate.gate)
app.command("study", short_help="Answer a question about speed or quality by several runs.")(study.study)
app.command("sweep", short_help="Run one experiment in many configurations.")(sweep.sweep)
app.command("resume", short_help="Resume an interrupted run.")(resume.resume)
app.command("sample", short_help="Sample the base model and the trained one.")(sample.sample)
app.command("evaluate", short_help="Measure the quality of a run's images.")(evaluate.evaluate)
app.command("export", short_help="Export a run for diffusers pipelines.")(export.export)
app.command("publish", short_help="Publish a run on the Hugging Face Hub.")(publish.publish)
app.add_typer(data.app, name="data", short_help="Make a folder of training data from an archive.")
app.add_typer(listing.app, name="list", short_help="List models, devices and methods.")
app.command("schema", short_help="Print the JSON schema of experiment files.")(schema.schema)
app.command("check", short_help="Check that the files of a run agree.")(check.check)
app.command("doctor", short_help="Check what works on this machine.")(doctor.doctor)
app.command("calibrate", short_help="Measure how fast this machine is, for plans.")(calibrate.calibrate)
app.command("tiny", short_help="Write a tiny pipeline, for tests and trials.")(tiny.tiny)


def commands_with(error: AmbiguousName, arguments: Sequence[str]) -> Iterator[str]:
    """The command that was typed, once for each candidate, with that one in place of the ambiguous name."""
    for candidate in error.candidates:
        replaced = [_with_name(argument, error.asked, candidate) for argument in arguments]
        if replaced != list(arguments):
            yield shlex.join(["foretune", *replaced])


def _with_name(argument: str, asked: str, name: str) -> str:
    """A name stands alone, in a list with commas, or behind an equals sign."""
    key, equals, value = argument.rpartition("=")
    parts = [name if part.strip() == asked else part for part in value.split(",")]
    return f"{key}{equals}{','.join(parts)}"


def main() -> None:
    """The entry point: what the user can fix is reported in a sentence, with exit code 2."""
    hush()
    wait_passively()
    # None: colour where the output is a terminal.
    color = False if os.environ.get("NO_COLOR") else None
    try:
        app(prog_name="foretune", color=color)
    except UserError as error:
        _print_error(str(error), color)
        if isinstance(error, AmbiguousName):
            for command in commands_with(error, sys.argv[1:]):
                typer.echo(f"  {command}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        fault = disk_fault(error)
        if fault is None:
            raise
        _print_error(fault, color)
        sys.exit(UserError.exit_code)


def _print_error(text: str, color: bool | None) -> None:
    """Prints what went wrong. Of several processes each names itself: only one of them may have failed."""
    from foretune.api.processes import later_rank

    rank = later_rank()
    where = "" if rank is None else f" in process {rank}"
    typer.secho(f"Error{where}: {shown_lines(text)}", fg="red", err=True, color=color)


if __name__ == "__main__":
    main()
