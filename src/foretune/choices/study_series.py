"""The file of a series of studies: one question, the studies that answer it, and their figures."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from foretune.choices.inference import VariantChoices
from foretune.choices.section import Section
from foretune.choices.study import Changes, Name, StudyFile
from foretune.core.vocabulary import SeriesSize


class SeriesForecast(Section):
    """What is planned beside each measurement: the full-size model on hardware that need not be here."""

    experiment: dict[str, Any]
    """The full-size experiment. The changes of a configuration and setting are made to it, but for where it runs."""
    on: tuple[str, ...] = Field(min_length=1)
    """Devices of the catalogue."""
    epoch_samples: int | None = Field(default=None, ge=1)
    """Also forecast the time for this many samples. Left out: as the study asks."""
    configurations: dict[Name, Changes] = Field(default={})
    """What is planned instead of the study's configurations."""
    settings: dict[Name, Changes] = Field(default={})
    """In which settings, instead of the study's."""


class SeriesInference(Section):
    """Ways to sample from one model, compared with the first of them."""

    variants: dict[Name, dict[str, Any]] = Field(min_length=1)
    """A name and what differs from fp32: precision, quantize, compile, merge, adapter, batch, devices."""
    trained_by: Name | None = None
    """Sample from what the first run of this part has trained. Left out: from the model of `shared`."""
    steps: int = Field(default=VariantChoices.steps, ge=1)
    """Denoising steps of each repeat."""
    repeat: int = Field(default=VariantChoices.repeat, ge=1)
    """Fresh processes."""
    images: int = Field(default=VariantChoices.images, ge=0)
    """Images from the same seeds that are compared with those of the first variant."""
    inference_steps: int = Field(default=VariantChoices.inference_steps, ge=1)
    """Denoising steps of an image."""
    size: int | str | None = None
    """Side in pixels, or `416x240`. Left out: the model's own."""


class SeriesPublished(Section):
    """Training speeds that others measured, to be held against the forecast."""

    by: str
    """Who published them."""
    device: str
    """A device of the forecast."""
    setting: Name | None = None
    """A setting of the forecast. Left out: it has one."""
    samples_per_s_per_device: dict[Name, float] = Field(min_length=1)
    """By configuration of the forecast."""


class SeriesPart(Section):
    """One study of the series."""

    title: str
    """What it answers."""
    authors_found: str | None = None
    """What the authors of the original study concluded."""
    study: dict[str, Any] | None = None
    """A study file, without what `shared` says."""
    published: SeriesPublished | None = None
    """Speeds of the original study, with which the forecast is compared."""
    inference: SeriesInference | None = None
    """Instead of a study: ways to sample."""

    @field_validator("inference", mode="before")
    @classmethod
    def _without_marks(cls, inference: Any) -> Any:
        # Studies keep them until they are merged with what all parts share.
        return without_marks(inference)

    forecast: dict[str, Any] | bool = True
    """Whether the series' forecast is made for its configurations, or what differs in it."""


FigureKind = Literal["measured", "curves", "operators", "stages", "best batch", "efficiency"]


class SeriesFigure(Section):
    """One picture with its table, drawn from one part."""

    part: Name
    """The part whose numbers it shows."""
    title: str
    """Above the picture."""
    kind: FigureKind = "measured"
    """measured: bars, or lines where configurations differ in one number. curves: losses by step. operators: the
    longest operators of a profile. stages: the phases of a step. best batch: speed at the smallest and the best
    batch. efficiency: speed on n devices / (n x speed on one)."""
    show: tuple[str, ...] = ()
    """measured: what is drawn, by the beginning of its name: `time for`, `peak memory`, `samples/s`."""
    per_device: bool = False
    """measured and best batch: samples/s of each device instead of all of them."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if (self.kind == "measured") != bool(self.show):
            raise ValueError("a measured figure, and only such a figure, needs show: what is drawn")
        return self


class SeriesFile(Section):
    """One question, the studies that answer it, and the figures that show the answer."""

    question: str
    """What the series answers, as a question."""
    shared: dict[str, Any] = Field(default={})
    """Keys of a study file that all parts share: experiment, seeds, fixtures, ..."""
    parts: dict[Name, SeriesPart] = Field(min_length=1)
    """In the order in which they are made."""
    forecast: SeriesForecast | None = None
    """What is planned beside the measurements. Left out: nothing."""
    figures: dict[Name, SeriesFigure] = Field(min_length=1)
    """By the name of their files."""
    takes: dict[SeriesSize, str] = Field(default={})
    """How long each size took, and where."""
    quick: dict[str, Any] = Field(default={})
    """What differs with --quick: any keys of this file."""
    full: dict[str, Any] = Field(default={})
    """What differs with --full."""

    @model_validator(mode="after")
    def _figures_have_parts(self) -> Self:
        if problems := list(self._problems()):
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> Iterable[str]:
        for name, part in self.parts.items():
            if (part.study is None) == (part.inference is None):
                yield f"parts.{name}: needs either study or inference"
                continue
            before = list(self.parts)[: list(self.parts).index(name)]
            if part.inference is not None and part.inference.trained_by not in (None, *before):
                yield f"parts.{name}.inference.trained_by: there is no part {part.inference.trained_by} before it"
            unknown = sorted(self.study_of(name).keys() - StudyFile.model_fields.keys())
            yield from (f"parts.{name}.study: a study file has no key {key}" for key in unknown)
        for name, figure in self.figures.items():
            if figure.part not in self.parts:
                yield f"figures.{name}: there is no part {figure.part}"

    def study_of(self, name: str) -> dict[str, Any]:
        """The study file of a part."""
        whole: dict[str, Any] = without_marks(merged(self.shared, self.parts[name].study or {}))
        return whole

    def forecast_of(self, name: str) -> SeriesForecast | None:
        """The forecast that is made beside a part."""
        own = self.parts[name].forecast
        if self.forecast is None or own is False:
            return None
        if own is True:
            return self.forecast
        whole = without_marks(merged(self.forecast.model_dump(exclude_unset=True), own))
        return SeriesForecast.model_validate(whole)


_REPLACES = "!"


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with the changes in it, section by section. A key that ends in `!` replaces its section as a whole."""
    made = dict(base)
    for key, value in changes.items():
        name = key.removesuffix(_REPLACES)
        marked = f"{name}{_REPLACES}"
        present = marked if marked in made else name
        before = made.get(present)
        if key == marked:
            # In the same place: parts are made in the order of the file.
            made = {marked if one == name else one: kept for one, kept in made.items()}
            made[marked] = value
        elif isinstance(value, Mapping) and isinstance(before, Mapping):
            made[present] = merged(before, value)
        else:
            made[present] = value
    return made


def without_marks(value: Any) -> Any:
    """The same without the marks behind keys."""
    if not isinstance(value, Mapping):
        return value
    return {key.removesuffix(_REPLACES): without_marks(inner) for key, inner in value.items()}
