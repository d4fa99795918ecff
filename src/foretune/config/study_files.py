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

from foretune.choices.study import NAME, Protocol, StudyFile, as_name
from foretune.choices.study_series import SeriesFile, merged
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
    mapping = load_mapping(path)
    if size == "full" and "full" not in mapping:
        raise UserError(f"{path.name} has no full size. Run: foretune study {path}")
    changes = {} if size == "small" else mapping.get(size) or {}
    mapping = merged(mapping, changes) if isinstance(changes, dict) else mapping
    for section in ("parts", "figures"):
        if isinstance(mapping.get(section), dict):
            mapping[section] = {name: one for name, one in mapping[section].items() if one is not None}
    try:
        return SeriesFile.model_validate(mapping)
    except ValidationError as error:
        raise ExperimentErrors(str(path), describe_mistakes(error, SeriesFile)) from error


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
    if name is not None:
        if not re.match(NAME, name):
            raise UserError(f"{name!r} cannot name a study: up to 100 letters, digits, '.', '_' and '-', no folders.")
        return name
    whole = file.name or (path.stem if re.match(NAME, path.stem) else "study")
    return "-".join((whole, *(["quick"] if is_quick else []), *([as_name(Path(model).name)] if model else [])))


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
