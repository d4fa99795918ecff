"""From a sweep file, or an experiment with several values for a key, to checked trials."""

import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from foretune.choices.experiment import Experiment
from foretune.choices.study import NAME, as_name
from foretune.choices.sweep import AxisOption, SweepFile, SweepQuick, combinations, is_excluded
from foretune.config.lengths import only_steps, with_length
from foretune.config.mistakes import describe_mistakes
from foretune.config.overrides import apply_overrides
from foretune.config.readiness import TO_TRAIN, Need
from foretune.config.reading import Asked, Check, understand
from foretune.config.yaml_files import load_mapping
from foretune.core.errors import ExperimentErrors, UserError
from foretune.core.values.base import content_hash

SPEED_STEPS = 30
"""Optimizer steps of a trial that measures speed, if the file does not say."""
_MOST_CHECKED = 2000
"""Combinations that are checked before the first trial; of more, a sample is."""
_MOST_NAME_LETTERS = 60
_HASH_LETTERS = 12

Point = Mapping[str, AxisOption]
"""One combination: an option of each axis."""


@dataclass(frozen=True, kw_only=True)
class SweepTrial:
    """One combination with one seed."""

    name: str
    """Readable values and the content hash."""
    content: str
    """Hash of what is run and where: what was done with this hash need not be run again."""
    labels: Mapping[str, str]
    """The value of each axis, as text."""
    values: Mapping[str, Any]
    """The value of each axis."""
    changes: Mapping[str, Any]
    """What the combination changes in the experiment, by key."""
    seed: int
    asked: Asked | None
    """None for a combination that does not work."""
    refusal: str | None = None
    """Why it does not work."""

    @property
    def point(self) -> str:
        """Names the combination, without the seed."""
        return point_key(self.labels)

    @property
    def label(self) -> str:
        return point_text(self.labels) + f", seed {self.seed}"


def point_key(labels: Mapping[str, str]) -> str:
    return json.dumps(dict(labels), sort_keys=True)


def point_text(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{axis_word(axis)} {label}" for axis, label in labels.items())


def axis_word(axis: str) -> str:
    """The short name of an axis: batch_size of train.batch_size."""
    return axis.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class SweepAsked:
    """A sweep as it was understood."""

    name: str
    file: SweepFile
    """With --quick and overrides in it."""
    base: dict[str, Any]
    """The experiment that the axes change."""
    source: str
    warnings: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    checks: tuple[Check, ...] = field(default=(), repr=False)

    def points(self) -> Iterator[dict[str, AxisOption]]:
        """Every combination that is not excluded, in the file's order."""
        for point in combinations(self.file.options):
            if not is_excluded(self.file.exclude, point):
                yield point

    def trial(self, point: Point, seed: int, environment: str = "") -> SweepTrial:
        """The trial of a combination; `environment` names the hardware and software it would run on."""
        changes = {key: value for option in point.values() for key, value in option.changes.items()}
        labels = {axis: option.label for axis, option in point.items()}
        mapping = _experiment(self.base, changes, self.file, seed)
        asked, refusal = None, None
        try:
            asked = understand(mapping, source=self.source, name=self.name, needs=self.needs, checks=self.checks)
        except ExperimentErrors as error:
            refusal = " ".join(error.problems)
        whole = content_hash(mapping) if asked is None else asked.experiment.whole_hash()
        content = content_hash({"experiment": whole, "environment": environment, **self.measured()})[:_HASH_LETTERS]
        words = "-".join(f"{axis_word(axis)}-{as_name(label)}" for axis, label in labels.items())
        return SweepTrial(
            # The values are for people; the hash tells trials apart.
            name=f"{words[:_MOST_NAME_LETTERS].strip('-.')}-seed-{seed}-{content}",
            content=content,
            labels=labels,
            values={axis: option.value for axis, option in point.items()},
            changes=changes,
            seed=seed,
            asked=asked,
            refusal=refusal,
        )

    def measured(self) -> dict[str, Any]:
        """What is measured of each experiment; with the experiment it decides what a trial is."""
        file = self.file
        return {
            "measure": file.measure,
            "synthetic_data": file.synthetic_data,
            "evaluate": None if file.evaluate is None else file.evaluate.model_dump(mode="json"),
            "host_gib": file.limits.host_gib,
        }

    def to_mapping(self) -> dict[str, Any]:
        """The sweep as a file that needs no other one."""
        given = self.file.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        # The kind is a default in Python, and what tells strategies apart in a file.
        return {**given, "strategy": self.file.strategy.model_dump(mode="json"), "experiment": self.base}


def load_sweep(path: Path, overrides: Sequence[str] = (), *, settings: Mapping[str, Any] | None = None) -> SweepFile:
    """Reads a sweep file, or makes one of an experiment file and overrides with several values.

    Args:
        path: of the sweep file, or of an experiment file.
        overrides: `key=value` changes the experiment; `key=a,b,c` is an axis.
        settings: keys of the sweep file itself, such as `steps`.
    """
    mapping = load_mapping(path)
    axes, changes = _split_overrides(overrides)
    if not _is_sweep(mapping):
        if not axes:
            raise UserError(
                f"{path} is an experiment, and no key has several values. Give at least one: "
                f"foretune sweep {path} train.batch_size=1,4,8. A sweep file has `axes`, see `foretune sweep --help`"
            )
        mapping = {"experiment": mapping}
    mapping = {**mapping, **(settings or {})}
    if axes and isinstance(mapping.get("axes") or {}, dict):
        mapping["axes"] = {**(mapping.get("axes") or {}), **axes}
    try:
        file = SweepFile.model_validate(mapping)
    except ValidationError as error:
        problems = [*describe_mistakes(error, SweepFile), *_problems_of_base(mapping, path)]
        raise ExperimentErrors(str(path), problems) from error
    base = load_mapping(path.parent / file.experiment) if isinstance(file.experiment, str) else dict(file.experiment)
    return file.model_copy(update={"experiment": apply_overrides(base, changes)})


def shortened(
    file: SweepFile, overrides: Sequence[str] = (), *, settings: Mapping[str, Any] | None = None
) -> SweepFile:
    """The sweep that --quick runs. What `load_sweep` was given besides the file holds here, too."""
    quick = file.quick or SweepQuick()
    base = dict(file.experiment) if isinstance(file.experiment, dict) else {}
    base = _changed(base, {**({} if quick.model is None else {"model": quick.model}), **quick.changes})
    given_axes, changes = _split_overrides(overrides)
    axes = {axis: quick.axes.get(axis, given) for axis, given in file.axes.items() if axis not in quick.drop}
    return SweepFile.model_validate(
        {
            **file.model_dump(by_alias=True, exclude={"quick"}),
            "experiment": apply_overrides(base, changes),
            "axes": {**axes, **given_axes},
            "seeds": quick.seeds,
            "steps": quick.steps or file.steps,
            "fixtures": quick.fixtures or file.fixtures,
            "limits": quick.limits or file.limits,
            **(settings or {}),
        }
    )


def check_sweep(
    file: SweepFile,
    path: Path,
    *,
    name: str,
    changes: Mapping[str, Any] | None = None,
    checks: Sequence[Check] = (),
    needs: Iterable[Need] = TO_TRAIN,
) -> SweepAsked:
    """Checks the experiments of a sweep; raises with all mistakes at once.

    A combination of valid values that does not work together is no mistake: its trials are recorded as refused.

    Args:
        changes: settings of every experiment by dotted key, such as a model made for the sweep.
        checks: further ones, as for `understand`.
        needs: what has to be there on this machine.
    """
    base = _changed(dict(file.experiment) if isinstance(file.experiment, dict) else {}, changes or {})
    checks = [*checks, partial(_unequal_nodes, file.resources.nodes)]
    asked = SweepAsked(name=name, file=file, base=base, source=str(path), needs=tuple(needs), checks=tuple(checks))
    points = list(_to_check(asked))
    if not points:
        raise UserError(f"{path}: `exclude` leaves no combination. Remove one of its entries.")
    problems: dict[str, list[int]] = {}
    refused: set[str] = set()
    warnings: dict[str, None] = {}
    for number, point in enumerate(points):
        changed = {key: value for option in point.values() for key, value in option.changes.items()}
        try:
            mapping = _experiment(base, changed, file, file.seeds[0])
            understood = understand(mapping, source=str(path), name=name, needs=asked.needs, checks=checks)
        except ExperimentErrors as error:
            refused.update(error.refused)
            for problem in error.problems:
                problems.setdefault(problem, []).append(number)
        except UserError as error:
            problems.setdefault(str(error), []).append(number)
        else:
            warnings |= dict.fromkeys(understood.warnings)
    mistakes = [text for text, places in problems.items() if text not in refused and _is_mistake(text, places, points)]
    if not mistakes and len(set(itertools.chain(*problems.values()))) == len(points):
        mistakes = list(problems)
    if mistakes:
        raise ExperimentErrors(str(path), mistakes)
    return SweepAsked(**{**vars(asked), "warnings": tuple(warnings)})


def _unequal_nodes(num_nodes: int, experiment: Experiment) -> Iterator[str]:
    """A trial on several nodes has as many processes on each as on the others."""
    num_devices = experiment.parallel.devices
    if num_devices % num_nodes:
        nearest = max(1, round(num_devices / num_nodes)) * num_nodes
        yield (
            f"parallel.devices: {num_devices} cannot be split over {num_nodes} nodes (resources.nodes), which have the "
            f"same number of processes each. Nearest: parallel.devices={nearest}"
        )


def sweep_name(file: SweepFile, path: Path, name: str | None = None, *, is_quick: bool = False) -> str:
    """The name of a sweep's folder: `name`, or the file's. A quick sweep has its own, because its trials are others."""
    if name is not None:
        if not re.match(NAME, name):
            raise UserError(f"{name!r} cannot name a sweep: up to 100 letters, digits, '.', '_' and '-', no folders.")
        return name
    whole = file.name or (path.stem if re.match(NAME, path.stem) else "sweep")
    return f"{whole}-quick" if is_quick else whole


def _is_sweep(mapping: Mapping[str, Any]) -> bool:
    return "axes" in mapping or ("experiment" in mapping and "model" not in mapping)


def _is_mistake(text: str, places: Sequence[int], points: Sequence[Point]) -> bool:
    """Whether a problem is that of a value, which is then wrong in every combination, not that of a combination."""
    found = set(places)
    if len(found) == len(points):
        return True
    key = re.split(r"[:,\s]", text, maxsplit=1)[0]
    setting_it = [axis for axis in points[0] if any(key in point[axis].changes for point in points)]
    for axis in setting_it or points[0]:
        for label in {points[number][axis].label for number in found}:
            with_it = {number for number, point in enumerate(points) if point[axis].label == label}
            if with_it <= found:
                return True
    return False


def _to_check(asked: SweepAsked) -> Iterator[dict[str, AxisOption]]:
    """All combinations, or a sample in which every value occurs."""
    if asked.file.num_combinations() <= _MOST_CHECKED:
        yield from asked.points()
        return
    draws, options = random.Random(0), asked.file.options
    found = 0
    for axis, values in options.items():
        for value in values:
            yield {**{other: draws.choice(of) for other, of in options.items()}, axis: value}
            found += 1
    while found < _MOST_CHECKED:
        point = {axis: draws.choice(of) for axis, of in options.items()}
        found += 1
        if not is_excluded(asked.file.exclude, point):
            yield point


def _split_overrides(overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """`key=a,b` gives an axis; other overrides change the experiment."""
    axes: dict[str, Any] = {}
    changes = []
    for override in overrides:
        key, equals, text = override.partition("=")
        values = _split_values(text) if equals else [text]
        if len(values) == 1:
            changes.append(override)
        else:
            mapping = [apply_overrides({}, [f"value={value}"])["value"] for value in values]
            axes[key.strip()] = mapping
    return axes, changes


def _split_values(text: str) -> list[str]:
    """The parts between commas that are outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _experiment(base: Mapping[str, Any], changes: Mapping[str, Any], file: SweepFile, seed: int) -> dict[str, Any]:
    mapping = _changed(base, changes)
    if not isinstance(mapping.get("train") or {}, dict):
        return mapping  # the experiment's own check says what is wrong with it
    if file.measure == "speed":
        mapping = only_steps(mapping, file.steps or SPEED_STEPS)
    elif file.steps is not None:
        mapping = with_length(mapping, steps=file.steps)
    return {**mapping, "train": {**(mapping.get("train") or {}), "seed": seed}}


def _changed(mapping: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return apply_overrides(dict(mapping), [f"{key}={json.dumps(value)}" for key, value in changes.items()])


def _problems_of_base(mapping: Mapping[str, Any], path: Path) -> Sequence[str]:
    """What is wrong with the experiment itself, where the sweep around it cannot be understood yet."""
    asked = mapping.get("experiment")
    try:
        base = load_mapping(path.parent / asked) if isinstance(asked, str) else asked
        if isinstance(base, dict):
            train = base.get("train") or {}
            understand(with_length(base, steps=1) if isinstance(train, dict) else base, source=str(path))
    except ExperimentErrors as error:
        return [f"experiment: {problem}" for problem in error.problems]
    except UserError as error:
        return [f"experiment: {error}"]
    return ()
