"""What a study file can ask: one experiment in several configurations, by one protocol."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, StringConstraints, field_validator, model_validator

from foretune.choices.earlier_keys import mixed_keys
from foretune.choices.section import Section
from foretune.choices.tiny import TINY_VARIANTS
from foretune.choices.training import Clock, Precision

Protocol = Literal["equal-time", "equal-steps", "convergence", "speed"]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
Name = Annotated[str, StringConstraints(pattern=NAME)]
Changes = dict[str, Any]
"""Key by key what differs: `parallel.threads: 2`."""
CLASSICAL_BATCH_SIZE = 256
_PROTOCOLS_WITH_VARY = ("convergence", "speed")
_LENGTHS = ("train.steps", "train.epochs", "train.seconds", "train.clock", "train.seed")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")

if TYPE_CHECKING:
    FixtureModel: TypeAlias = str
else:
    # Of each family that has a tiny pipeline; type checkers cannot read the table, pydantic can.
    FixtureModel = Literal[(*(f"tiny-{family}" for family in TINY_VARIANTS), "small-flux", "small-sd3")]


class StudyEvaluate(Section):
    """How the quality of each run is measured, beside its held-out loss."""

    metrics: tuple[str, ...] = ()
    """Names of metrics. Left out: all that apply."""
    prompts: tuple[str, ...] = ()
    """Captions to sample from. Left out: those of held-out images."""
    seeds: int = Field(default=2, ge=1)
    """Images of each caption."""
    num_inference_steps: int | None = Field(default=None, ge=1)
    """Denoising steps of each image. Left out: as the experiment validates."""


class StudyInference(Section):
    """How denoising is measured with what each run has trained."""

    batch_size: int = Field(default=CLASSICAL_BATCH_SIZE, ge=1)
    """Images at once. Where they do not fit, the largest half, quarter, ... that does, and it is said."""
    precision: Precision = "fp32"
    """Numbers of the computation."""
    steps: int = Field(default=10, ge=1)
    """Denoising steps that are timed."""


class StudyFixtures(Section):
    """What is generated in the study's folder before its first run, so that the study needs no files."""

    model: FixtureModel | None = None
    """A pipeline with random weights that takes the place of the experiment's model. tiny-flux, tiny-sd3, ...: the
    smallest of a family that runs; small-flux and small-sd3: about 25 million weights, which show in time and memory.
    """
    images: int | None = Field(default=None, ge=1)
    """Number of JPEG files of 1024 x 1024 pixels that take the place of data.path."""


class StudyQuick(Section):
    """The shorter study of --quick: to try it, not to quote it."""

    configurations: tuple[Name, ...] = ()
    """The configurations to run. Left out: all."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps of each run. Left out: as many as without --quick."""
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = Field(default=(0, 1), min_length=1)
    """The seeds to run."""


class StudyFile(Section):
    """One question, asked of several configurations in the same way."""

    name: Name | None = None
    """Names the folder of its runs. Left out: the file's own name."""
    protocol: Protocol
    """equal-time: the same training time, which quality. equal-steps: the same steps, which speed in training and
    inference. convergence: loss curves, and when more steps stop helping. speed: step time and memory of the steps
    alone, without validation and saving."""
    experiment: str | dict[str, Any] = Field(examples=["experiment.yaml"])
    """An experiment file, relative to this one, or the experiment itself."""
    seconds: float | None = Field(default=None, gt=0)
    """equal-time: how long each run trains."""
    clock: Clock | None = None
    """equal-time: what these seconds count. steps: time inside optimizer steps (the default). run: everything from the
    first step on, validation and saving included."""
    steps: int | None = Field(default=None, ge=1)
    """equal-steps, convergence and speed: optimizer steps of each run."""
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = Field(default=(0, 1, 2), min_length=1)
    """Each configuration is run once with each. Fewer than three are no claim."""
    configurations: dict[Name, Changes] = Field(default={}, examples=[{"one-thread": {"parallel.threads": 1}}])
    """What is compared: a name and what it changes in the experiment. The first is what others are compared with."""
    prices: dict[Name, Annotated[float, Field(ge=0)]] = Field(default={}, examples=[{"one-gpu": 0.8}])
    """US dollars for an hour of all that a configuration uses. Left out: the catalogue's price of its devices."""
    settings: dict[Name, Changes] = Field(default={}, examples=[{"smallest": {"data.resolution": 16}}])
    """In which sizes it is compared: a name and what it changes. Left out: the experiment as it is."""
    vary: dict[str, list[Any]] = Field(default={}, examples=[{"optimizer.lr": [1e-3, 1e-4]}])
    """convergence and speed: keys and their values; each combination is a configuration."""
    least_gain: float = Field(default=0.01, gt=0, lt=1)
    """convergence: a third of the steps that gains less than this share of the loss no longer shows."""
    evaluate: StudyEvaluate | None = None
    """Left out: the held-out loss alone."""
    inference: StudyInference | None = None
    """equal-steps: left out, batch 256 in fp32, as papers compare diffusion models."""
    synthetic_data: bool = False
    """speed: train on random latents and captions of the right shapes, without images and encoders."""
    epoch_samples: int | None = Field(default=None, ge=1)
    """speed: also report the time for this many samples."""
    profiled_steps: int | None = Field(default=None, ge=1, le=100)
    """speed: so many further steps under the profiler, which do not count for the speed. Left out: none."""
    fixtures: StudyFixtures | None = None
    """A model or images to generate for the study. Left out: those of the experiment."""
    quick: StudyQuick | None = None
    """What --quick runs instead. Left out: every configuration with two seeds."""

    @field_validator("seeds")
    @classmethod
    def _each_once(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("has a seed twice, which would be the same run twice")
        return seeds

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        problems = [*self._length_problems(), *self._choice_problems(), *self._change_problems()]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _length_problems(self) -> Iterable[str]:
        if self.protocol == "equal-time":
            if self.seconds is None:
                yield "protocol equal-time needs seconds: how long each run trains"
            if self.steps is not None:
                yield "protocol equal-time has no steps: time decides how many there are"
            return
        if self.steps is None:
            yield f"protocol {self.protocol} needs steps: optimizer steps of each run"
        for key in ("seconds", "clock"):
            if getattr(self, key) is not None:
                yield f"protocol {self.protocol} has no {key}, which goes with equal-time"

    def _choice_problems(self) -> Iterable[str]:
        if self.protocol in _PROTOCOLS_WITH_VARY:
            if not self.vary and not self.configurations:
                yield f"protocol {self.protocol} needs vary (keys and their values) or configurations"
            if self.vary and self.configurations:
                yield "has both vary and configurations; keep one of them"
        else:
            if self.vary:
                others = " and ".join(_PROTOCOLS_WITH_VARY)
                yield f"protocol {self.protocol} has no vary, which goes with {others}; name configurations instead"
            if not self.configurations:
                yield (
                    f"protocol {self.protocol} needs configurations: a name and what it changes, for example "
                    "`one-thread: {parallel.threads: 1}`"
                )
        if self.inference is not None and self.protocol != "equal-steps":
            yield f"protocol {self.protocol} measures no inference, which goes with equal-steps"
        if self.protocol == "speed" and self.evaluate is not None:
            yield "protocol speed trains too few steps to evaluate; equal-time and equal-steps measure quality"
        for key in ("synthetic_data", "epoch_samples", "profiled_steps"):
            if getattr(self, key) and self.protocol != "speed":
                yield f"protocol {self.protocol} has no {key}, which goes with speed"
        unknown = set(() if self.quick is None else self.quick.configurations) - self.compared.keys()
        yield from (f"quick.configurations: there is no configuration {name}" for name in sorted(unknown))
        unpriced = sorted(self.prices.keys() - self.compared.keys())
        yield from (f"prices: there is no configuration {name}" for name in unpriced)
        yield from (f"vary.{key} has no values" for key, values in self.vary.items() if not values)

    def _change_problems(self) -> Iterable[str]:
        changes = {
            **{f"configurations.{name}": tuple(keys) for name, keys in self.configurations.items()},
            **{f"settings.{name}": tuple(keys) for name, keys in self.settings.items()},
            "vary": tuple(self.vary),
        }
        for place, keys in changes.items():
            yield from (f"{place}: {sentence}" for sentence in mixed_keys(keys))
            for key in keys:
                if key in _LENGTHS:
                    yield f"{place} changes {key}, which the study itself decides (seconds, steps, clock, seeds)"

    def shortened(self) -> Self:
        """The study that --quick runs."""
        quick = self.quick or StudyQuick()
        chosen = {name: self.compared[name] for name in quick.configurations or self.compared}
        steps = None if self.steps is None else quick.steps or self.steps
        return self.model_copy(update={"seeds": quick.seeds, "steps": steps, "configurations": chosen, "vary": {}})

    @property
    def compared(self) -> dict[str, Changes]:
        """What is compared, by name."""
        return dict(self.configurations) or dict(_combinations(self.vary))


def _combinations(vary: dict[str, list[Any]]) -> Iterable[tuple[str, Changes]]:
    """Each with a name that can be a folder: precision-fp32-lr-0.001."""
    found: list[tuple[str, Changes]] = [("", {})]
    for key, values in vary.items():
        word = key.rpartition(".")[2]
        found = [
            (f"{name}-{word}-{as_name(value)}".lstrip("-"), {**changes, key: value})
            for name, changes in found
            for value in values
        ]
    return found


def as_name(value: Any) -> str:
    """A value as part of a folder's name."""
    return _NOT_IN_A_NAME.sub("-", f"{value:g}" if isinstance(value, float) else str(value)).strip("-") or "none"
