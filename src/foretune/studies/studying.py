"""A study from its name to its answer on disk."""

import dataclasses
import json
from pathlib import Path

from foretune.core.observer import Observer
from foretune.measure.bench import new_directory
from foretune.record.atomic import write_text
from foretune.record.environment import environment_fingerprint
from foretune.studies.named.base import Study, StudyRequest, StudyResult
from foretune.training.busyness import BusyWatch

STUDY_FILE = "study.json"


def run_study(
    study: Study, studies: Path, *, model: Path | None, is_quick: bool, observer: Observer
) -> tuple[Path, StudyResult]:
    """Measures, and writes studies/<name>/<id>/study.json; the runs are in folders beside it."""
    busy = BusyWatch().warn(observer)
    path = new_directory(studies, study.name)
    made = study.run(StudyRequest(directory=path, model=model, is_quick=is_quick, observer=observer))
    measured_with = {**made.measured_with, "is_quick": is_quick, "environment": environment_fingerprint()}
    result = dataclasses.replace(made, measured_with=measured_with, warnings=(*busy, *made.warnings))
    write_text(path / STUDY_FILE, json.dumps(result.to_mapping(), indent=2) + "\n")
    return path, result
