"""`study`: one question, several configurations, the answer with its uncertainty."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.live_steps import LiveSteps
from foretune.api.start import import_libraries
from foretune.core.errors import UnknownName
from foretune.core.extras import require
from foretune.core.observer import Observer
from foretune.core.units import duration_text

if TYPE_CHECKING:
    from foretune.analyse.studying import StudySummary
    from foretune.studies.named.base import StudyResult
    from foretune.studies.study_file import PartDone

NAMED_STUDIES = ("operators", "batch-size", "workers", "precision", "compile", "methods")
"""Studies that need no file. Here, because to ask for their names should not import torch."""
_FILE_ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True)
class NamedStudy:
    """What a study with a name found."""

    path: Path
    """Of study.json, the plots and the runs."""
    result: "StudyResult"

    @property
    def json(self) -> str:
        from foretune.studies.studying import STUDY_FILE

        return (self.path / STUDY_FILE).read_text(encoding="utf-8")


@dataclass(frozen=True)
class FileStudy:
    """What a study file's runs say."""

    path: Path
    """Of study.json, the plots and the runs."""
    summary: "StudySummary"
    done: "tuple[PartDone, ...]" = ()
    """The runs of this call, in their order; empty where a folder was only summed up."""

    @property
    def problems(self) -> dict[str, str]:
        """Runs that failed, with the reason."""
        return {one.part.label: one.problem for one in self.done if one.problem is not None}

    @property
    def json(self) -> str:
        return _json_of(self.summary)


def is_study_file(target: str | Path) -> bool:
    """Whether it is a study file or a study's folder, not a study with a name."""
    return str(target) not in NAMED_STUDIES and (Path(target).is_dir() or Path(target).suffix in _FILE_ENDINGS)


def study_file(
    target: str | Path,
    *,
    only: Sequence[str] = (),
    studies: str | Path = "studies",
    plot: bool = True,
    observer: Observer | None = None,
) -> FileStudy:
    """Runs what is not there yet of a study file, then sums up what is. A study's folder is only summed up.

    Args:
        target: a study file, or the folder of a study.
        only: run these configurations of the file alone; their folders can be copied to others.
        studies: where results are kept.
        plot: draw the summary; needs `foretune[plots]`.
        observer: receives progress.
    """
    _require_plots(target, plot=plot)
    path = Path(target)
    if path.is_dir():
        return _summed_up(path, None, plot=plot)
    from foretune.config.study_files import read_study

    observer = observer or Observer()
    asked = read_study(path, only=tuple(only))
    require("train", "Running a study")
    num, seconds = len(asked.parts), asked.file.seconds
    least = "" if seconds is None else f", {duration_text(num * seconds)} of training in all"
    runs = "1 run in a fresh process" if num == 1 else f"{num} runs in fresh processes, in turns"
    observer.message(f"{asked.name}: {asked.file.protocol}, {runs}{least}.")
    import_libraries(observer, warns_if_busy=True)
    from foretune.studies.study_file import run_study_file
    from foretune.training.forecast import plan_here

    for warning in asked.warnings:
        observer.warning(warning)
    live = LiveSteps(observer)
    # `train` reports why a run has no forecast; among many runs that would drown the rest.
    done = run_study_file(asked, Path(studies), observer, lambda one: plan_here(one, live, lambda _: None))
    num_reused = sum(part.is_reused for part in done)
    if num_reused:
        observer.message(f"{num_reused} of {num} runs were there already.")
    return _summed_up(Path(studies) / asked.name, asked.file.least_gain, plot=plot, done=done)


def study(
    name: str,
    *,
    model: str | Path | None = None,
    quick: bool = False,
    studies: str | Path = "studies",
    plot: bool = True,
    observer: Observer | None = None,
) -> NamedStudy:
    """Runs a study that needs no file: operators, batch-size, workers, precision, compile or methods.

    Args:
        name: of the study.
        model: a pipeline's folder; without it, a small one is made.
        quick: fewer points and repeats: to try it, not to quote it.
        studies: where results are kept.
        plot: draw the result; needs `foretune[plots]`.
        observer: receives progress.
    """
    _require_plots(name, plot=plot)
    if name not in NAMED_STUDIES:
        raise UnknownName("study or study file", name, NAMED_STUDIES)
    require("train", "A study")
    observer = observer or Observer()
    start_s = _import_timed(observer)
    from foretune.studies.named import STUDIES
    from foretune.studies.studying import run_study

    chosen = STUDIES[name]
    num = chosen.num_processes(quick)
    expected_s = num * (start_s + 1) + (chosen.extra_s(quick) if model is None else 0)
    processes = "1 fresh process" if num == 1 else f"{num} fresh processes"
    own = ", and the steps of your model" if model is not None else ""
    observer.message(f"{chosen.title}: {processes}, about {duration_text(expected_s)}{own}.")
    folder = None if model is None else Path(model)
    path, result = run_study(chosen, Path(studies), model=folder, is_quick=quick, observer=observer)
    if plot:
        from foretune.reports.study_plots import write_study_plots

        write_study_plots(result.to_mapping(), path)
    return NamedStudy(path, result)


def _import_timed(observer: Observer) -> float:
    """A fresh process takes about as long to start as the imports took here."""
    import time

    begin_s = time.perf_counter()
    import_libraries(observer)
    return time.perf_counter() - begin_s


def _require_plots(target: str | Path, *, plot: bool) -> None:
    if plot:
        needed = "plots" if Path(target).is_dir() else "train,plots"
        require(needed, "A study with plots (leave them out with --no-plot)")


def _summed_up(
    directory: Path, least_gain: float | None, *, plot: bool, done: "tuple[PartDone, ...]" = ()
) -> FileStudy:
    """Writes study.json and the plot beside the runs."""
    from foretune.analyse.studying import STUDY_FILE, summarise_study
    from foretune.record.atomic import write_text
    from foretune.stats.settling import LEAST_GAIN

    summary = summarise_study(directory, least_gain=least_gain or LEAST_GAIN)
    write_text(directory / STUDY_FILE, _json_of(summary))
    if plot:
        from foretune.reports.protocol_plots import write_protocol_plots

        write_protocol_plots(summary.to_mapping(), directory)
    return FileStudy(directory, summary, done)


def _json_of(summary: "StudySummary") -> str:
    return json.dumps(summary.to_mapping(), indent=2, allow_nan=False) + "\n"
