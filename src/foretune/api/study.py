"""`study`: one question, several configurations, the answer with its uncertainty."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.api.executing import ExecutorChoices, opened_executor, require_executor
from foretune.api.live_steps import LiveSteps
from foretune.api.start import absent_device, import_libraries
from foretune.core.errors import UnknownName, UserError
from foretune.core.extras import require
from foretune.core.observer import Observer
from foretune.core.units import duration_text
from foretune.studies.shipped import SHIPPED_SERIES, SHIPPED_STUDIES

if TYPE_CHECKING:
    from foretune.analyse.study_summary import StudySummary
    from foretune.choices.study import StudyFile
    from foretune.config.study_files import StudyAsked
    from foretune.executors.executor import Executor
    from foretune.studies.study_file import PartDone

STUDY_NAMES = (*SHIPPED_SERIES, *SHIPPED_STUDIES)
"""Names of the studies that need no file."""
_FILE_ENDINGS = (".yaml", ".yml")
_OPERATORS = "operators"
"""The name of an earlier study, which `profile` answers."""


@dataclass(frozen=True)
class StudyOutcome:
    """What the runs of a study show."""

    path: Path
    """Folder of study.json, the plots and the runs."""
    summary: "StudySummary"
    done: "tuple[PartDone, ...]" = ()
    """The runs of this call, in their order; empty if a folder was only summarised."""

    @property
    def problems(self) -> dict[str, str]:
        """Runs that failed, with the reason."""
        return {one.part.label: one.problem for one in self.done if one.problem is not None}

    @property
    def json(self) -> str:
        return _json_of(self.summary)


def study(
    target: str | Path,
    *,
    only: Sequence[str] = (),
    model: str | Path | None = None,
    name: str | None = None,
    quick: bool = False,
    executor: str = "local",
    jobs: int | None = None,
    options: ExecutorChoices = (),
    studies: str | Path = "studies",
    plot: bool = True,
    observer: Observer | None = None,
) -> StudyOutcome:
    """Runs what is missing of a study, then summarises all of its runs. A study's folder is only summarised.

    Args:
        target: a study file; the name of one that comes with Foretune (batch-size, compile, methods, precision,
            workers); or the folder of a study.
        only: run these configurations only; their folders can be copied to other machines.
        model: study this model instead of the file's.
        name: of the study's folder. Default: the file's name. Another name measures everything again.
        quick: the shorter study of the file's `quick` section: to try it, not to quote it.
        executor: where runs are made: local, slurm or ray.
        jobs: runs at once; one on a CPU by default, because they would slow each other down.
        options: further options of the executor.
        studies: where results are stored.
        plot: draw the summary; needs `foretune[plots]`.
        observer: receives progress.
    """
    file = study_path(target)
    if str(target) in SHIPPED_SERIES:
        raise UserError(f"{target} is a series of studies. In Python: ft.study_series({str(target)!r})")
    if plot:
        needed = "plots" if file.is_dir() else "train,plots"
        require(needed, "A study with plots (leave them out with --no-plot)")
    if file.is_dir():
        _refuse_for_folder(only=only, model=model, name=name, quick=quick)
        return summarised(file, None, plot=plot)
    require_executor(executor, "A study")
    observer = observer or Observer()
    import_once = cache(partial(import_libraries, observer, "foretune.studies.study_file", warns_if_busy=True))
    is_here = executor == "local"
    asked = read_study_file(
        file, only, model, name, Path(studies), observer, import_once, is_quick=quick, is_here=is_here
    )
    with opened_executor(executor, jobs=jobs, options=options) as opened:
        done = run_study_parts(asked, Path(studies), observer, import_once, opened)
    return summarised(Path(studies) / asked.name, asked.file, plot=plot, done=done)


def study_path(target: str | Path) -> Path:
    """The study file or folder that is meant."""
    shipped = {**SHIPPED_SERIES, **SHIPPED_STUDIES}.get(str(target))
    if shipped is not None:
        return shipped
    if str(target) == _OPERATORS:
        raise UserError("This study is gone: `foretune profile EXPERIMENT.yaml` lists the longest operators of a step.")
    path = Path(target)
    if path.is_dir() or path.suffix in _FILE_ENDINGS:
        return path
    raise UnknownName("study or study file", str(target), STUDY_NAMES)


def read_study_file(
    path: Path,
    only: Sequence[str],
    model: str | Path | None,
    name: str | None,
    studies: Path,
    observer: Observer,
    import_once: Callable[[], bool],
    *,
    is_quick: bool,
    is_here: bool,
) -> "StudyAsked":
    """The study with its fixtures made. The file is checked before torch is imported to make them."""
    from foretune.config.study_files import load_study, read_study, study_name

    file = load_study(path, only=only, is_quick=is_quick)
    chosen = study_name(file, path, name, model=None if model is None else str(model), is_quick=is_quick)
    changes: dict[str, Any] = {} if model is None else {"model": str(model)}
    fixtures = file.fixtures
    if fixtures is not None and model is not None:
        fixtures = fixtures.model_copy(update={"model": None})
    if fixtures is not None and (fixtures.model, fixtures.images) != (None, None):
        require("train", "Running a study")
        import_once()
        from foretune.studies.fixtures import make_fixtures

        changes |= make_fixtures(fixtures, studies / chosen, observer)
    checks = [absent_device] if is_here else []
    return read_study(path, only=tuple(only), name=chosen, is_quick=is_quick, changes=changes, checks=checks)


def run_study_parts(
    asked: "StudyAsked",
    studies: Path,
    observer: Observer,
    import_once: Callable[[], bool],
    executor: "Executor",
) -> "tuple[PartDone, ...]":
    require("train", "Running a study")
    observer.message(f"{asked.name}: {asked.file.protocol}, {_length(asked.file, len(asked.parts))}.")
    import_once()
    from foretune.studies.study_file import run_study_file
    from foretune.training.forecast import plan_here

    for warning in asked.warnings:
        observer.warning(warning)
    live = LiveSteps(observer)
    # `train` reports why a run has no forecast; among many runs that would drown the rest.
    # Of a cluster's nodes nothing is known here.
    forecast = (lambda one: plan_here(one, live, lambda _: None)) if executor.name == "local" else None
    done = run_study_file(asked, studies, executor, observer, forecast)
    num_reused = sum(part.is_reused for part in done)
    if num_reused:
        observer.message(
            f"{num_reused} of {len(done)} runs were there already. To measure them again: --name {asked.name}-2"
        )
    return done


def _length(file: "StudyFile", num: int) -> str:
    runs = "1 run in a fresh process" if num == 1 else f"{num} runs in fresh processes, in turns"
    return runs if file.seconds is None else f"{runs}, {duration_text(num * file.seconds)} of training in all"


def _refuse_for_folder(*, only: Sequence[str], model: str | Path | None, name: str | None, quick: bool) -> None:
    options = {"--only": bool(only), "--model": model is not None, "--name": name is not None, "--quick": quick}
    for option, is_given in options.items():
        if is_given:
            raise UserError(f"{option} goes with a study file. A study's folder is only summarised, not run.")


def summarised(
    directory: Path, file: "StudyFile | None", *, plot: bool, done: "tuple[PartDone, ...]" = ()
) -> StudyOutcome:
    """Writes study.json and the plot beside the runs. `file`: of the study, where it is given."""
    from foretune.analyse.study_summary import STUDY_FILE, summarise_study
    from foretune.record.atomic import write_text

    choices: dict[str, Any] = {} if file is None else {"least_gain": file.least_gain, "prices": file.prices}
    summary = summarise_study(directory, **choices)
    write_text(directory / STUDY_FILE, _json_of(summary))
    if plot:
        from foretune.reports.study_plots import write_study_plots

        write_study_plots(summary.to_mapping(), directory)
    return StudyOutcome(directory, summary, done)


def _json_of(summary: "StudySummary") -> str:
    return json.dumps(summary.to_mapping(), indent=2, allow_nan=False) + "\n"
