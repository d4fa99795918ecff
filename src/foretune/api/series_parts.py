"""Reads and checks the parts of a series, so that no mistake of a later part appears after hours of measuring."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.study import read_study_file
from foretune.core.errors import Mistakes
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from foretune.choices.study_series import SeriesFile
    from foretune.config.study_files import StudyAsked


def checked_parts(
    series: "SeriesFile",
    folder: Path,
    model: str | Path | None,
    observer: Observer,
    import_once: Callable[[], bool],
    *,
    is_here: bool,
) -> "dict[str, StudyAsked]":
    """Reads and checks all parts before anything is measured; returns the studies among them."""
    asked: dict[str, StudyAsked] = {}
    mistakes = Mistakes()
    for part, content in series.parts.items():
        if content.inference is not None:
            mistakes.attempt(_check_inference, series, part, model)
            continue
        path = _written(series, part, folder)
        read = partial(read_study_file, is_quick=False, is_here=is_here)
        study = mistakes.attempt(read, path, (), model, part, folder, observer, import_once)
        if study is not None:
            asked[part] = study
    mistakes.raise_all("The series")
    import_once()
    from foretune.studies.study_file import refuse_other_question

    def refuse_other_runs(study: "StudyAsked") -> None:
        for run in study.parts:
            refuse_other_question(run, folder)

    for study in asked.values():
        mistakes.attempt(refuse_other_runs, study)
    mistakes.raise_all("The series")
    return asked


def _check_inference(series: "SeriesFile", part: str, model: str | Path | None) -> None:
    """Raises for ways to sample that do not exist, and for a model that does not."""
    from foretune.measure.inference_variants import variant_of
    from foretune.quality.naming import check_subject

    content = series.parts[part].inference
    assert content is not None
    for name, choices in content.variants.items():
        variant_of(name, choices)
    shared = series.study_of(part)
    if content.trained_by is None and (model is not None or not (shared.get("fixtures") or {}).get("model")):
        check_subject(str(model or shared.get("experiment", {}).get("model")))


def _written(series: "SeriesFile", part: str, folder: Path) -> Path:
    """Writes the study file of a part, which can be run alone."""
    import yaml

    from foretune.record.atomic import write_text

    path = folder / f"{part}.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, yaml.safe_dump(series.study_of(part), sort_keys=False, allow_unicode=True))
    return path
