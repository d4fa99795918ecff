"""A series of studies: one question, several studies, one page and one folder of figures."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.api.executing import ExecutorChoices, opened_executor, require_executor
from foretune.api.series_parts import checked_parts
from foretune.api.start import import_libraries
from foretune.api.study import run_study_parts, study_path, summarised
from foretune.core.errors import UserError
from foretune.core.extras import require
from foretune.core.observer import Observer
from foretune.core.vocabulary import SeriesSize
from foretune.studies.shipped import SHIPPED_SERIES

if TYPE_CHECKING:
    from foretune.analyse.joined_view import JoinedView
    from foretune.analyse.run_data import RunData
    from foretune.analyse.trace_digest import TraceDigest
    from foretune.api.study import StudyOutcome
    from foretune.choices.study_series import SeriesFile, SeriesPart
    from foretune.core.values import InferencePlan, Plan
    from foretune.reports.series_numbers import PartResults
    from foretune.reports.series_page import PartAnswer, SeriesAnswer

PAGE, MARKDOWN, FIGURES = "report.html", "report.md", "figures"
_FORECASTS = "forecast.json"
_DEFAULTS = {"executor": "local", "studies": "studies"}
"""Options that a command leaves out."""


@dataclass(frozen=True)
class SeriesOutcome:
    """The page, the figures and the failed runs of a series of studies."""

    path: Path
    """Folder of the page, of the figures and of each study."""
    answer: "SeriesAnswer"
    problems: Mapping[str, str]
    """Runs and parts that failed, with the reason."""

    @property
    def page(self) -> Path:
        return self.path / PAGE

    @property
    def figures(self) -> Path:
        return self.path / FIGURES


def is_series(file: Path) -> bool:
    """Whether a file asks for a series of studies, not for one."""
    from foretune.config.study_files import is_series_file

    return is_series_file(file)


def study_series(
    target: str | Path,
    *,
    size: SeriesSize = "small",
    model: str | Path | None = None,
    name: str | None = None,
    executor: str = "local",
    jobs: int | None = None,
    options: ExecutorChoices = (),
    studies: str | Path = "studies",
    observer: Observer | None = None,
) -> SeriesOutcome:
    """Runs what is missing of each study of a series, then draws its figures and writes its page.

    Args:
        target: flux-hardware, sd3-small-gpu, inference, amd-benchmark, cifar10-ddpm; or the file of a series.
        size: small, quick or full, as its sections say.
        model: measure this model instead of the file's.
        name: of the series' folder. Default: the file's name, size and model. Another name measures everything again.
        executor: where runs are made: local, slurm or ray.
        jobs: runs at once; one on a CPU by default.
        options: further options of the executor.
        studies: where results are stored.
        observer: receives progress.
    """
    from foretune.config.study_files import load_series, series_name

    file = study_path(target)
    if not is_series(file):
        raise UserError(f"{target} is a single study. Run: foretune study {target}")
    series = load_series(file, size)
    folder = Path(studies) / series_name(file, name, model=None if model is None else str(model), size=size)
    require("train,plots", "A series of studies")
    require_executor(executor, "A series of studies")
    observer = observer or Observer()
    took = series.takes.get(size)
    observer.message(f"{series.question} {len(series.parts)} studies{f'; takes {took}' if took else ''}.")
    import_once = cache(partial(import_libraries, observer, "foretune.studies.study_file", warns_if_busy=True))
    asked = checked_parts(series, folder, model, observer, import_once, is_here=executor == "local")
    found: dict[str, _Part] = {}
    failed: dict[str, str] = {}
    with opened_executor(executor, jobs=jobs, options=options) as opened:
        for number, (part, content) in enumerate(series.parts.items(), start=1):
            observer.message(f"{number} of {len(series.parts)}: {content.title}")
            try:
                if part in asked:
                    done = run_study_parts(asked[part], folder, observer, import_once, opened)
                    outcome = summarised(folder / part, asked[part].file, plot=False, done=done)
                    found[part] = _Part(outcome.summary.to_mapping(), outcome)
                else:
                    found[part] = _inference(series, part, folder, found, model, observer, import_once)
            except UserError as error:
                failed[part] = str(error)
                observer.warning(f"{part}: {error} The series goes on.")
    places = {"executor": executor, "studies": str(studies)}
    given = {"model": model, "name": name, "jobs": jobs, **{k: v for k, v in places.items() if v != _DEFAULTS[k]}}
    command = _command(file.stem if file in SHIPPED_SERIES.values() else str(target), size, given, options)
    return _reported(series, found, failed, folder, command, observer)


def _command(target: str, size: SeriesSize, given: Mapping[str, Any], options: ExecutorChoices) -> str:
    """The command that makes the same page again."""
    words = ["foretune", "study", target, *([] if size == "small" else [f"--{size}"])]
    for option, value in given.items():
        words += [] if value is None else [f"--{option}", str(value)]
    pairs = [f"{key}={value}" for key, value in options.items()] if isinstance(options, Mapping) else options
    return shlex.join([*words, *(word for pair in pairs for word in ("--option", pair))])


@dataclass(frozen=True)
class _Part:
    """The measurements of one part."""

    study: Mapping[str, Any]
    """The content of its study.json."""
    outcome: "StudyOutcome | None" = None
    """Its runs; None for inference, which makes none."""
    environments: tuple[Mapping[str, Any], ...] = ()

    @property
    def runs(self) -> "list[RunData]":
        cells = () if self.outcome is None else self.outcome.summary.cells
        return [one.run for cell in cells for one in cell.parts]

    @property
    def machines(self) -> list[str]:
        """In words."""
        from foretune.record.environment import machine_text

        return [machine_text(one) for one in (*self.environments, *(run.environment for run in self.runs))]


def _inference(
    series: "SeriesFile",
    part: str,
    folder: Path,
    before: Mapping[str, _Part],
    model: str | Path | None,
    observer: Observer,
    import_once: Callable[[], bool],
) -> _Part:
    """Measures ways to sample from the series' model, or from what an earlier part has trained."""
    from foretune.api.bench import compare_inference

    content = series.parts[part].inference
    assert content is not None
    if content.trained_by is not None:
        runs = before[content.trained_by].runs if content.trained_by in before else []
        if not runs:
            raise UserError(f"{content.trained_by} has no finished run, so that {part} has nothing to sample from.")
        target = str(runs[0].path)
    elif model is not None:
        target = str(model)
    else:
        shared = series.study_of(part)
        target = str(shared.get("experiment", {}).get("model"))
        if name := (shared.get("fixtures") or {}).get("model"):
            import_once()
            from foretune.choices.study import StudyFixtures
            from foretune.studies.fixtures import make_fixtures

            target = make_fixtures(StudyFixtures(model=name), folder / part, observer)["model"]
    choices = content.model_dump(exclude={"variants", "trained_by"})
    study = compare_inference(target, content.variants, folder=folder / part, observer=observer, **choices)
    environments = tuple(one["environment"] for one in study.measured[0].denoising)
    return _Part(study.study, environments=environments)


def _reported(
    series: "SeriesFile",
    found: Mapping[str, _Part],
    failed: Mapping[str, str],
    folder: Path,
    command: str,
    observer: Observer,
) -> SeriesOutcome:
    from foretune.analyse.series_conclusion import ConcludedPart, conclusion
    from foretune.record.atomic import write_text
    from foretune.reports.series_figures import write_joined
    from foretune.reports.series_page import SeriesAnswer, series_markdown, series_page

    machines = dict.fromkeys(machine for part in found.values() for machine in part.machines)
    results = {name: _results(series, name, part, folder, observer) for name, part in found.items()}
    joined = _joined(list(results.values()))
    answer = SeriesAnswer(
        name=folder.name,
        question=series.question,
        machine="; ".join(machines) or "no machine: no run has finished",
        conclusion=conclusion(
            # Runs under the profiler show where time goes, not how fast a configuration is.
            [
                ConcludedPart(study=one.study, forecasts=one.forecasts, model=one.model)
                for one in results.values()
                if not one.digests
            ]
        ),
        joined=None if joined is None else write_joined(joined, folder / FIGURES),
        parts=tuple(
            _answered(series, name, found[name], results[name], folder)
            if name in found
            else _unanswered(name, content, failed[name])
            for name, content in series.parts.items()
        ),
        command=command,
    )
    write_text(folder / PAGE, series_page(answer))
    write_text(folder / MARKDOWN, series_markdown(answer))
    problems = dict(failed) | {
        f"{name}, {label}": why
        for name, part in found.items()
        if part.outcome is not None
        for label, why in part.outcome.problems.items()
    }
    return SeriesOutcome(folder, answer, problems)


def _results(series: "SeriesFile", name: str, part: _Part, folder: Path, observer: Observer) -> "PartResults":
    """The measurements of a part with the plans beside them."""
    from foretune.reports.series_numbers import PartResults

    forecast = series.forecast_of(name)
    return PartResults(
        study=part.study,
        forecasts=_forecasts(series, name, folder, observer),
        digests=_digests(part),
        model="" if forecast is None else str(forecast.experiment.get("model")),
    )


def _joined(parts: "Sequence[PartResults]") -> "JoinedView | None":
    """All machines in one table, where parts have both protocols; None where they do not."""
    from foretune.analyse.joined_view import joined_view

    planned = next((part for part in parts if part.study["protocol"] == "equal-steps"), None)
    beside = () if planned is None else (planned.forecasts, planned.model)
    view = joined_view([part.study for part in parts], *beside)
    return view if view is not None and view.is_joined else None


def _answered(series: "SeriesFile", name: str, part: _Part, results: "PartResults", folder: Path) -> "PartAnswer":
    from foretune.analyse.series_answers import answers_of
    from foretune.analyse.series_forecast import settings_text
    from foretune.analyse.study_summary import FEW_SEEDS
    from foretune.reports.series_figures import write_figure
    from foretune.reports.series_page import PartAnswer

    content = series.parts[name]
    figures = tuple(
        write_figure(file, figure, results, folder / FIGURES)
        for file, figure in series.figures.items()
        if figure.part == name
    )
    problems = {} if part.outcome is None else part.outcome.problems
    forecast = series.forecast_of(name)
    planned = "" if forecast is None else settings_text(forecast.experiment, is_inference=content.inference is not None)
    return PartAnswer(
        name=name,
        title=content.title,
        held_equal=part.study["held_equal"],
        sentences=tuple(answers_of(part.study, results.forecasts, results.model, results.digests, content.published)),
        authors_found=content.authors_found,
        figures=figures,
        # That nothing is claimed from fewer than three seeds is part of the sentences.
        warnings=tuple(text for text in part.study["warnings"] if FEW_SEEDS not in text),
        problems=tuple(f"{label}: {why}" for label, why in problems.items()),
        forecast_settings=planned,
    )


def _unanswered(name: str, part: "SeriesPart", problem: str) -> "PartAnswer":
    """A part that could not be measured."""
    from foretune.reports.series_page import PartAnswer

    return PartAnswer(
        name=name,
        title=part.title,
        held_equal="",
        sentences=(),
        authors_found=part.authors_found,
        figures=(),
        warnings=(),
        problems=(problem,),
    )


def _forecasts(series: "SeriesFile", part: str, folder: Path, observer: Observer) -> list[dict[str, Any]]:
    forecast = series.forecast_of(part)
    if forecast is None:
        return []
    from foretune.analyse.series_forecast import forecast_rows, inference_rows
    from foretune.api.plan import plan
    from foretune.api.plan_inference import plan_inference
    from foretune.choices.study import StudyFile
    from foretune.record.atomic import write_text

    def planned(experiment: Mapping[str, Any], device: str) -> "Plan":
        (found,) = plan(experiment, on=device, advice="none")
        return found

    def inferred(question: Mapping[str, Any], device: str) -> "InferencePlan":
        (found,) = plan_inference(**question, on=device)
        return found

    observer.preparing(f"planning {part}", 0, 1)
    inference = series.parts[part].inference
    if inference is not None:
        rank = None if inference.trained_by is None else _trained_rank(series, inference.trained_by, folder)
        found = inference_rows(inference, forecast, inferred, trained_rank=rank)
    else:
        found = forecast_rows(StudyFile.model_validate(series.study_of(part)), forecast, planned, inferred)
    rows = [asdict(row) for row in found]
    write_text(folder / part / _FORECASTS, json.dumps(rows, indent=2) + "\n")
    return rows


def _trained_rank(series: "SeriesFile", part: str, folder: Path) -> int | None:
    """Rank of the adapter that the first configuration of a part trains; None where it trains every weight."""
    from foretune.analyse.series_forecast import adapter_rank, configured
    from foretune.choices.study import StudyFile
    from foretune.config.study_files import base_experiment

    study = StudyFile.model_validate(series.study_of(part))
    setting, configuration = (next(iter(found.values()), {}) for found in (study.settings, study.compared))
    return adapter_rank(configured(base_experiment(study, folder / f"{part}.yaml"), {**setting, **configuration}))


def _digests(part: _Part) -> "dict[str, TraceDigest]":
    """What is in the newest trace of each configuration, where there is one."""
    from foretune.analyse.trace_digest import digest, newest_trace

    found = {}
    for run in part.runs:
        try:
            trace = newest_trace(run.path)
        except UserError:
            continue
        found[run.effective["study"]["configuration"]] = digest(trace, within=run.path)
    return found
