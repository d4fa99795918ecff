"""From a study file to its parts: one checked experiment for each configuration, setting and seed; and from the file of
a series to its studies.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from foretune.choices.model import resolve_model
from foretune.choices.study import NAME, Protocol, StudyFile, StudyInference, as_name
from foretune.choices.study_series import SeriesFile, SeriesForecast, merged
from foretune.config.lengths import only_steps, with_length
from foretune.config.mistakes import describe_mistakes
from foretune.config.overrides import apply_overrides
from foretune.config.readiness import TO_TRAIN
from foretune.config.reading import Asked, Check, understand
from foretune.config.yaml_files import load_mapping
from foretune.core.errors import ExperimentErrors, UnknownName, UserError
from foretune.core.vocabulary import SeriesSize

ONLY_SETTING = "as-asked"
"""The setting of a study that names none."""


@dataclass(frozen=True, kw_only=True)
class StudyPart:
    """One run of a study."""

    study: str
    protocol: Protocol
    configuration: str
    setting: str
    seed: int
    order: tuple[int, int]
    """Which setting and which configuration of the file it is."""
    asked: Asked
    changes: Mapping[str, Any]
    """What the configuration changes in the experiment, by key."""
    question: Mapping[str, Any]
    """Model, fixtures and measurements beside the training: runs with other ones belong to another study."""
    epoch_samples: int | None = None
    usd_per_hour: float | None = None
    """Price of all that the configuration uses, as the file says."""

    @property
    def folder(self) -> Path:
        """Where its run directory is, below the folder of studies."""
        return Path(self.study) / self.configuration / self.setting / f"seed-{self.seed}"

    @property
    def label(self) -> str:
        named = self.configuration if self.setting == ONLY_SETTING else f"{self.configuration}, {self.setting}"
        return f"{named}, seed {self.seed}"

    def about(self) -> dict[str, Any]:
        """What its run directory says of it, so that a summary needs nothing else."""
        return {
            "name": self.study,
            "protocol": self.protocol,
            "configuration": self.configuration,
            "setting": self.setting,
            "seed": self.seed,
            "order": list(self.order),
            "changes": dict(self.changes),
            "question": dict(self.question),
            **({} if self.epoch_samples is None else {"epoch_samples": self.epoch_samples}),
            **({} if self.usd_per_hour is None else {"usd_per_hour": self.usd_per_hour}),
        }


@dataclass(frozen=True, kw_only=True)
class StudyAsked:
    """A study as it was understood."""

    name: str
    file: StudyFile
    parts: tuple[StudyPart, ...]
    """In the order in which they are run: in turns, so that a machine that drifts does so for all."""
    warnings: tuple[str, ...]


def load_study(path: Path, *, only: Sequence[str] = (), is_quick: bool = False) -> StudyFile:
    """Reads a study file without its experiments; raises with all mistakes at once, also if `only` is not in it."""
    if not path.exists():
        raise UserError(
            f"{path} does not exist. A study file names a protocol, an experiment and configurations, for example:\n"
            "  protocol: equal-time\n  seconds: 60\n  experiment: experiment.yaml\n"
            "  configurations: {lora: {method.kind: lora}, full: {method.kind: full}}"
        )
    mapping = load_mapping(path)
    try:
        file = StudyFile.model_validate(mapping)
    except ValidationError as error:
        problems = [*describe_mistakes(error, StudyFile), *_problems_of_base(mapping, path)]
        raise ExperimentErrors(str(path), problems) from error
    if is_quick:
        file = file.shortened()
    for name in only:
        if name not in file.compared:
            raise UnknownName("configuration", name, file.compared)
    return file


def is_series_file(path: Path) -> bool:
    """Whether a file asks for a series of studies, not for one."""
    return path.is_file() and "parts" in load_mapping(path)


def load_series(path: Path, size: SeriesSize) -> SeriesFile:
    """Reads the file of a series in one of its sizes; raises with all mistakes at once."""
    mapping = _with_experiments(load_mapping(path), path.parent)
    if size == "full" and "full" not in mapping:
        raise UserError(f"{path.name} has no full size. Run: foretune study {path}")
    changes = {} if size == "small" else mapping.get(size) or {}
    changes = _with_experiments(changes, path.parent) if isinstance(changes, dict) else changes
    mapping = merged(mapping, changes) if isinstance(changes, dict) else mapping
    for section in ("parts", "figures"):
        if isinstance(mapping.get(section), dict):
            mapping[section] = {name: one for name, one in mapping[section].items() if one is not None}
    try:
        series = SeriesFile.model_validate(mapping)
    except ValidationError as error:
        raise ExperimentErrors(str(path), describe_mistakes(error, SeriesFile)) from error
    problems = []
    for name in series.parts:
        try:
            series.forecast_of(name)
        except ValidationError as error:
            problems += [f"parts.{name}.forecast: {text}" for text in describe_mistakes(error, SeriesForecast)]
    if problems:
        raise ExperimentErrors(str(path), problems)
    return series


def _with_experiments(mapping: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The file of a series with the experiment files that `shared` and its studies name; they replace others."""

    def loaded(study: Any) -> Any:
        if not isinstance(study, dict) or not isinstance(study.get("experiment"), str):
            return study
        experiment = {"experiment!": load_mapping(folder / study["experiment"])}
        return {key: value for key, value in study.items() if key != "experiment"} | experiment

    made = dict(mapping)
    for key in ("shared", "shared!"):
        if key in made:
            made[key] = loaded(made[key])
    for key in ("parts", "parts!"):
        if isinstance(made.get(key), dict):
            made[key] = {
                name: {**part, "study": loaded(part["study"])} if isinstance(part, dict) and "study" in part else part
                for name, part in made[key].items()
            }
    return made


def read_study(
    path: Path,
    *,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    name: str | None = None,
    is_quick: bool = False,
    changes: Mapping[str, Any] | None = None,
    checks: Sequence[Check] = (),
) -> StudyAsked:
    """Reads and checks a study file and the experiments to run here; raises with all mistakes at once.

    Args:
        path: of the study file.
        only: configurations to run here. Those that another machine runs are not checked.
        seeds: seeds to run here.
        name: of the study's folder. Default: the file's.
        is_quick: run the shorter study of the file's `quick` section.
        changes: settings of every experiment of the study by dotted key, such as a model made for it.
        checks: further ones, as for `understand`.
    """
    file = load_study(path, only=only, is_quick=is_quick)
    if unknown := [seed for seed in seeds if seed not in file.seeds]:
        raise UserError(f"{path} has no seed {unknown[0]}; it has {', '.join(map(str, file.seeds))}.")
    name = study_name(file, path, name, is_quick=is_quick)
    base = _changed(base_experiment(file, path), changes or {})
    found: dict[str, list[str]] = {}
    parts: dict[tuple[str, str, int], StudyPart] = {}
    warnings: dict[str, None] = {}
    for configuration, setting, seed in _places(file, only, seeds):
        differing = {**file.settings.get(setting, {}), **file.compared[configuration]}
        try:
            form = _experiment(base, differing, file, seed)
            asked = understand(form, source=str(path), name=name, needs=TO_TRAIN, checks=checks)
        except ExperimentErrors as error:
            for problem in error.problems:
                found.setdefault(problem, []).append(f"{configuration}/{setting}")
            continue
        parts[configuration, setting, seed] = StudyPart(
            study=name,
            protocol=file.protocol,
            configuration=configuration,
            setting=setting,
            seed=seed,
            order=(_settings(file).index(setting), list(file.compared).index(configuration)),
            asked=asked,
            changes=file.compared[configuration],
            question=_question(file, asked.experiment.model),
            epoch_samples=file.epoch_samples,
            usd_per_hour=file.prices.get(configuration),
        )
        warnings |= dict.fromkeys(asked.warnings)
    if found:
        num_places = len(_settings(file)) * len(only or file.compared)
        raise ExperimentErrors(str(path), [_placed(text, places, num_places) for text, places in found.items()])
    return StudyAsked(name=name, file=file, parts=tuple(parts.values()), warnings=tuple(warnings))


def study_name(
    file: StudyFile, path: Path, name: str | None = None, *, model: str | None = None, is_quick: bool = False
) -> str:
    """The name of a study's folder: `name`, or the file's. Quick studies and those of another model have names of their
    own, because their runs are not those of the file.
    """
    whole = file.name or (path.stem if re.match(NAME, path.stem) else "study")
    return _folder_name(whole, name, "quick" if is_quick else "small", model)


def series_name(path: Path, name: str | None = None, *, model: str | None = None, size: SeriesSize = "small") -> str:
    """The name of a series' folder, made as that of a single study."""
    return _folder_name(path.stem if re.match(NAME, path.stem) else "series", name, size, model)


def _folder_name(whole: str, name: str | None, size: SeriesSize, model: str | None) -> str:
    if name is not None:
        if not re.match(NAME, name):
            raise UserError(f"{name!r} cannot name a study: up to 100 letters, digits, '.', '_' and '-', no folders.")
        return name
    return "-".join((whole, *([] if size == "small" else [size]), *([as_name(Path(model).name)] if model else [])))


def model_name(model: str) -> str:
    """The name of a model's repository or folder, wherever it lies."""
    try:
        reference = resolve_model(model)
    except UserError:
        return Path(model).name.lower()  # a folder of another machine
    return Path(reference.repo or model).name.lower()


def _question(file: StudyFile, model: str) -> dict[str, Any]:
    inference = file.inference or (StudyInference() if file.protocol == "equal-steps" else None)
    return {
        "model": model_name(model),
        "images": None if file.fixtures is None else file.fixtures.images,
        "synthetic_data": file.synthetic_data,
        "evaluate": None if file.evaluate is None else file.evaluate.model_dump(mode="json"),
        "inference": None if inference is None else inference.model_dump(mode="json"),
    }


def _places(file: StudyFile, only: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    """Round by round, one seed each; every second round backwards, so that none is always first."""
    chosen = [(setting, name) for setting in _settings(file) for name in file.compared if not only or name in only]
    for number, seed in enumerate(seed for seed in file.seeds if not seeds or seed in seeds):
        for setting, configuration in chosen if number % 2 == 0 else reversed(chosen):
            yield configuration, setting, seed


def _settings(file: StudyFile) -> tuple[str, ...]:
    return tuple(file.settings) or (ONLY_SETTING,)


def base_experiment(file: StudyFile, path: Path) -> dict[str, Any]:
    """Returns the experiment of a study file, before the changes of its configurations."""
    if isinstance(file.experiment, str):
        return load_mapping(path.parent / file.experiment)
    return dict(file.experiment)


def _problems_of_base(mapping: Mapping[str, Any], path: Path) -> Sequence[str]:
    """What is wrong with the experiment itself, where the study around it cannot be understood yet."""
    asked = mapping.get("experiment")
    try:
        base = load_mapping(path.parent / asked) if isinstance(asked, str) else asked
        if isinstance(base, dict):
            train = base.get("train") or {}
            form = with_length(base, steps=1) if isinstance(train, dict) else base
            understand(form, source=str(path), needs=TO_TRAIN)
    except ExperimentErrors as error:
        return [f"experiment: {problem}" for problem in error.problems]
    except UserError as error:
        return [f"experiment: {error}"]
    return ()


def _changed(mapping: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return apply_overrides(dict(mapping), [f"{key}={json.dumps(value)}" for key, value in changes.items()])


def _experiment(base: Mapping[str, Any], changes: Mapping[str, Any], file: StudyFile, seed: int) -> dict[str, Any]:
    """The experiment with the changes of a setting and a configuration in it, as long as the study says."""
    mapping = _changed(base, changes)
    if not isinstance(mapping.get("train") or {}, dict):
        return mapping  # the experiment's own check says what is wrong with it
    length: dict[str, Any] = {"steps": file.steps}
    if file.seconds is not None:
        length = {"seconds": file.seconds, "clock": file.clock or "steps"}
    if file.protocol == "speed":
        assert file.steps is not None, "checked with the file"
        mapping = only_steps(mapping, file.steps)
        if file.profiled_steps is not None:
            length["steps"] = file.steps + file.profiled_steps
            mapping["profile"] = {"at_step": file.steps + 1, "steps": file.profiled_steps}
    return with_length(mapping, **length, seed=seed)


def _placed(problem: str, places: Sequence[str], num_places: int) -> str:
    """Where a mistake is: nothing is said where it is everywhere."""
    found = list(dict.fromkeys(places))
    return problem if len(found) == num_places else f"{problem} (in {', '.join(found)})"
