"""What a sweep file can ask: one experiment in many configurations, along axes."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from foretune.choices.section import Section
from foretune.choices.study import Changes, Name, StudyEvaluate, StudyFixtures
from foretune.core.errors import closest

Objective = Literal["speed", "memory", "quality", "money"]
OBJECTIVES: tuple[Objective, ...] = ("speed", "memory", "quality", "money")
Measurement = Literal["train", "speed"]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
_COMPARISON = re.compile(r"^(<=|>=|!=|<|>)\s*(\S+)$")
_LENGTHS = ("train.steps", "train.epochs", "train.seconds", "train.clock")
_SIGNIFICANT_DIGITS = 12
MOST_VALUES = 10_000
"""Of one axis."""


class AxisRange(Section):
    """Values from one number to another, both included."""

    from_: float = Field(alias="from")
    """First value."""
    to: float
    """Last value, if a step reaches it."""
    step: float | None = Field(default=None, gt=0)
    """Difference between neighbours: 1 gives 1, 2, 3, ..."""
    factor: float | None = Field(default=None, gt=1)
    """Ratio of neighbours: 2 gives 1, 2, 4, ..."""
    num: int | None = Field(default=None, ge=2, le=MOST_VALUES)
    """Number of values, evenly spaced."""
    scale: Literal["linear", "log"] = "linear"
    """Spacing of num values. log: their ratio is the same."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        given = [key for key in ("step", "factor", "num") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError("needs exactly one of step, factor and num")
        if self.to < self.from_:
            raise ValueError(f"goes down from {self.from_:g} to {self.to:g}; write the smaller number first")
        if (self.factor is not None or self.scale == "log") and self.from_ <= 0:
            raise ValueError("needs numbers above 0 where their ratio is the same")
        if self.scale == "log" and self.num is None:
            raise ValueError("has a scale, which goes with num")
        if self.num_values() > MOST_VALUES:
            raise ValueError(f"has more than {MOST_VALUES} values")
        return self

    def num_values(self) -> int:
        if self.num is not None:
            return self.num
        if self.step is not None:
            return math.floor((self.to - self.from_) / self.step + 1e-9) + 1
        assert self.factor is not None, "one of the three is given"
        return math.floor(math.log(self.to / self.from_) / math.log(self.factor) + 1e-9) + 1

    def values(self) -> list[Any]:
        """Whole numbers stay whole, so that they can be sizes and counts."""
        return [_rounded(value) for value in self._values()]

    def _values(self) -> Iterator[float]:
        for number in range(self.num_values()):
            if self.step is not None:
                yield self.from_ + number * self.step
            elif self.factor is not None:
                yield self.from_ * self.factor**number
            else:
                assert self.num is not None, "one of the three is given"
                share = number / (self.num - 1)
                if self.scale == "log":
                    yield self.from_ * (self.to / self.from_) ** share
                else:
                    yield self.from_ + (self.to - self.from_) * share


class GridStrategy(Section):
    """Every combination."""

    kind: Literal["grid"] = "grid"


class RandomStrategy(Section):
    """Some combinations, drawn without repetition."""

    kind: Literal["random"] = "random"
    trials: int = Field(ge=1)
    """Number of combinations to draw."""
    seed: Seed = 0
    """The same seed draws the same combinations."""


class GuidedStrategy(Section):
    """Combinations chosen by the results so far (optuna); several objectives give a Pareto front."""

    kind: Literal["guided"] = "guided"
    trials: int = Field(ge=1)
    """Number of combinations to try."""
    objectives: tuple[Objective, ...] = Field(default=("speed",), min_length=1)
    """What to improve: speed, memory, quality (held-out loss) or money."""
    seed: Seed = 0
    """Of the search's own draws."""


class FrontierStrategy(Section):
    """The largest value of one axis that fits in memory, for each combination of the other axes."""

    kind: Literal["frontier"] = "frontier"
    key: str = Field(examples=["train.batch_size"])
    """The axis to search, its values from small to large."""
    uses_forecast: bool = True
    """Start where the memory estimate puts the limit, and skip sizes that it says do not fit with margin. The answer is
    the same without it, after more trials."""


Strategy = Annotated[GridStrategy | RandomStrategy | GuidedStrategy | FrontierStrategy, Field(discriminator="kind")]


class SweepLimits(Section):
    """What one trial may take; beyond it, it ends and the sweep goes on."""

    seconds: float | None = Field(default=None, gt=0)
    """Wall time of a trial, with loading and encoding."""
    host_gib: float | None = Field(default=None, gt=0)
    """Host memory of a trial's process, enforced by the operating system."""


class SweepResources(Section):
    """What one trial gets."""

    nodes: int = Field(default=1, ge=1)
    """Machines of a cluster."""
    devices: int | None = Field(default=None, ge=0)
    """Accelerators on each node. Left out: parallel.devices, or 0 with parallel.device cpu."""
    cpus: int | None = Field(default=None, ge=1)
    """CPU cores on each node. Left out: the executor decides."""


class SweepQuick(Section):
    """The shorter sweep of --quick: to try it, not to quote it."""

    model: str | None = None
    """Model instead of the experiment's."""
    fixtures: StudyFixtures | None = None
    """A model or images to generate instead."""
    changes: Changes = Field(default={})
    """What else differs in the experiment, by key."""
    axes: dict[str, Any] = Field(default={})
    """Axes with fewer values; the others stay as they are."""
    drop: tuple[str, ...] = ()
    """Axes that are left out."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps of each trial."""
    seeds: tuple[Seed, ...] = Field(default=(0,), min_length=1)
    """Seeds of each combination."""
    limits: SweepLimits | None = None
    """Limits instead of the file's."""


class SweepFile(Section):
    """One experiment in many configurations."""

    name: Name | None = None
    """Names the sweep's folder. Left out: the file's own name."""
    experiment: str | dict[str, Any] = Field(examples=["experiment.yaml"])
    """An experiment file, relative to this one, or the experiment itself."""
    measure: Measurement = "train"
    """train: train as the experiment says, with validation and checkpoints. speed: time and memory of optimizer steps
    alone, as `foretune bench` measures them."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps of each trial. Left out: the experiment's own length; speed: 30."""
    synthetic_data: bool = False
    """speed: train on random latents and captions of the right shapes, without images and encoders."""
    epoch_samples: int | None = Field(default=None, ge=1)
    """Also report the time for this many samples."""
    evaluate: StudyEvaluate | None = None
    """train: also measure the quality of each run. Left out: the held-out loss alone."""
    axes: dict[str, Any] = Field(min_length=1, examples=[{"train.batch_size": [1, 4, 8]}])
    """Keys of the experiment and their values: a list, a range ({from: 1, to: 8, step: 1}, {from: 1, to: 64, factor: 2}
    or {from: 1e-6, to: 1e-4, num: 5, scale: log}), or named settings that change several keys together."""
    exclude: tuple[dict[str, Any], ...] = Field(default=(), examples=[[{"train.batch_size": "> 4"}]])
    """Combinations to leave out: axes with a value, a list of values, or a comparison such as "> 4" or "!= bf16". All
    conditions of an entry must hold."""
    strategy: Strategy = GridStrategy()
    """grid: every combination. random: some of them. guided: chosen by the results so far. frontier: the largest value
    of an axis that fits."""
    seeds: tuple[Seed, ...] = Field(default=(0,), min_length=1)
    """Each combination is tried once with each, in turns. Fewer than three show no difference for certain."""
    objective: Objective | None = None
    """What the recommendation goes by. Left out: quality where it is measured, otherwise speed."""
    limits: SweepLimits = SweepLimits()
    """What one trial may take."""
    resources: SweepResources = SweepResources()
    """What one trial gets."""
    skip_unfit: bool = True
    """Skip combinations whose memory estimate does not fit even at its low end. They are recorded as predicted."""
    device: str | None = None
    """The device of a cluster's nodes, for forecasts and prices. Left out: this machine's, if trials run on it."""
    usd_per_hour: float | None = Field(default=None, gt=0)
    """Price of one device for an hour. Left out: the catalogue's."""
    fixtures: StudyFixtures | None = None
    """A model or images to generate for the sweep. Left out: those of the experiment."""
    quick: SweepQuick | None = None
    """What --quick runs instead. Left out: the same with one seed."""

    @field_validator("seeds")
    @classmethod
    def _each_once(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("has a seed twice, which would be the same trial twice")
        return seeds

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        problems = [*self._axis_problems(), *self._exclude_problems(), *self._measure_problems()]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _axis_problems(self) -> Iterable[str]:
        for axis, given in self.axes.items():
            try:
                options = axis_options(axis, given)
            except ValueError as error:
                yield f"axes.{axis} {error}"
                continue
            for key in {key for option in options for key in option.changes}:
                if key in _LENGTHS and self.steps is not None:
                    yield f"axes.{axis} changes {key}, which `steps` decides for all trials; remove one of them"
                if key == "train.seed":
                    yield "axes change train.seed; list them under `seeds`, so that trials with them are repeats"
        strategy = self.strategy
        if isinstance(strategy, FrontierStrategy) and strategy.key not in self.axes:
            yield f"strategy.key {_not_an_axis(strategy.key, self.axes)}"

    def _exclude_problems(self) -> Iterable[str]:
        for number, conditions in enumerate(self.exclude):
            place = f"exclude.{number}"
            if not conditions:
                yield f"{place} has no condition and would exclude everything"
            for key, condition in conditions.items():
                known = {*self.axes, *(key for option in self._all_options() for key in option.changes)}
                if key not in known:
                    yield f"{place}.{key} {_not_an_axis(key, known)}"
                elif isinstance(condition, dict):
                    yield f'{place}.{key} should be a value, a list of values, or a comparison such as "> 4"'

    def _measure_problems(self) -> Iterable[str]:
        if self.measure == "speed":
            if self.evaluate is not None:
                yield "measure speed trains too few steps to evaluate; use measure: train"
            if self.objective == "quality":
                yield "measure speed has no held-out loss, which objective quality goes by; use measure: train"
            if isinstance(self.strategy, GuidedStrategy) and "quality" in self.strategy.objectives:
                yield "measure speed has no held-out loss, which strategy.objectives names; use measure: train"
        elif self.synthetic_data:
            yield "measure train has no synthetic_data, which goes with measure: speed"

    def _all_options(self) -> Iterator["AxisOption"]:
        for axis, given in self.axes.items():
            try:
                yield from axis_options(axis, given)
            except ValueError:
                continue  # reported with the axis

    @property
    def options(self) -> dict[str, list["AxisOption"]]:
        """What each axis can be."""
        return {axis: axis_options(axis, given) for axis, given in self.axes.items()}

    def num_combinations(self) -> int:
        """Before any is excluded."""
        return math.prod(len(options) for options in self.options.values())


class AxisOption:
    """One value of an axis: what it is called, and what it changes."""

    def __init__(self, label: str, changes: Mapping[str, Any], value: Any) -> None:
        self.label, self.changes, self.value = label, dict(changes), value


def axis_options(axis: str, given: Any) -> list[AxisOption]:
    """The values of an axis. Raises `ValueError` with the rest of a sentence that begins with the axis."""
    if isinstance(given, Mapping):
        if given and all(isinstance(changes, Mapping) for changes in given.values()):
            return [AxisOption(str(name), changes, str(name)) for name, changes in given.items()]
        try:
            values = AxisRange.model_validate(dict(given)).values()
        except ValueError as error:
            raise ValueError(_range_problem(error)) from error
    elif isinstance(given, list | tuple):
        values = list(given)
    else:
        raise ValueError(f"should be a list: [{given}]")
    if not values:
        raise ValueError("has no values")
    if "." not in axis and axis != "model":
        raise ValueError(
            f"is not a key of an experiment such as train.batch_size. If {axis} is a name of your own, give named "
            "settings: {small: {train.batch_size: 1}, large: {train.batch_size: 8}}"
        )
    labels = [value_label(value) for value in values]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"has {twice} twice")
    return [AxisOption(label, {axis: value}, value) for label, value in zip(labels, values, strict=True)]


def _range_problem(error: ValueError) -> str:
    errors = getattr(error, "errors", None)
    details = errors() if errors is not None else []
    texts = []
    for detail in details:
        where = ".".join(str(part) for part in detail["loc"])
        text = str(detail["msg"]).removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            guess = closest(where, [*(("from", "to", "step", "factor", "num", "scale"))])
            text = f"is not a key of a range. Did you mean {guess!r}?" if guess else "is not a key of a range"
        texts.append(f"{where}: {text}" if where else text)
    return "; ".join(texts) or str(error)


_PADDED_EXPONENT = re.compile(r"e\+?(-?)0*(?=\d)")
"""1e-06 is written 1e-6, and 1e+08 1e8."""


def value_label(value: Any) -> str:
    """A value as people write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _PADDED_EXPONENT.sub(r"e\1", f"{value:g}")
    return "none" if value is None else str(value)


def is_excluded(exclude: Iterable[Mapping[str, Any]], point: Mapping[str, AxisOption]) -> bool:
    """Whether an entry's conditions all hold."""
    changes = {key: value for option in point.values() for key, value in option.changes.items()}
    values = {**changes, **{axis: option.value for axis, option in point.items()}}
    return any(all(_holds(condition, values.get(key)) for key, condition in entry.items()) for entry in exclude)


def _holds(condition: Any, value: Any) -> bool:
    if isinstance(condition, list | tuple):
        return any(_holds(one, value) for one in condition)
    found = _COMPARISON.match(condition) if isinstance(condition, str) else None
    if found is None:
        return condition == value or (not isinstance(value, bool) and value_label(value) == value_label(condition))
    sign, text = found.groups()
    if sign == "!=":
        return value_label(value) != text and not _is_number_like(value, text)
    try:
        limit, number = float(text), float(value)
    except (TypeError, ValueError):
        return False
    return {"<": number < limit, "<=": number <= limit, ">": number > limit, ">=": number >= limit}[sign]


def _is_number_like(value: Any, text: str) -> bool:
    try:
        return float(value) == float(text)
    except (TypeError, ValueError):
        return False


def combinations(options: Mapping[str, list[AxisOption]]) -> Iterator[dict[str, AxisOption]]:
    """Every combination, the last axis changing fastest."""
    for chosen in itertools.product(*options.values()):
        yield dict(zip(options, chosen, strict=True))


def _not_an_axis(key: str, axes: Iterable[str]) -> str:
    known = list(axes)
    guess = closest(key, known)
    return f"is not an axis. Did you mean {guess!r}?" if guess else f"is not an axis; axes: {', '.join(known)}"


def _rounded(value: float) -> int | float:
    value = float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
