"""From a file and overrides to a checked Experiment."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from foretune.choices.capabilities import objections
from foretune.choices.experiment import Experiment
from foretune.choices.model import ModelReference, resolve_model
from foretune.choices.objections import DeviceType, Objection
from foretune.config.mistakes import describe_mistakes
from foretune.config.overrides import apply_overrides
from foretune.config.yaml_files import load_mapping
from foretune.core.errors import ExperimentErrors, UserError


@dataclass(frozen=True)
class Asked:
    """An experiment as it was asked and as it was understood."""

    as_asked: dict[str, Any]
    """The file's content with the overrides in it, before any default."""
    experiment: Experiment
    model: ModelReference
    warnings: tuple[str, ...]


def read_experiment(path: Path, overrides: Iterable[str] = (), *, only_planned: bool = False) -> Asked:
    """Reads and checks an experiment file; raises with every mistake at once. A file without `name` gives its own.

    The file that a run keeps of its experiment is taken for the experiment, with the defaults it had then.
    """
    content = load_mapping(path)
    is_of_a_run = isinstance(content.get("resolved"), dict) and "asked" in content
    mapping = apply_overrides(content["resolved"] if is_of_a_run else content, overrides)
    return understand(mapping, source=str(path), name=_name_from(path), only_planned=only_planned)


def understand(mapping: dict[str, Any], *, source: str, name: str = "experiment", only_planned: bool = False) -> Asked:
    """Checks a mapping as an experiment: its form, the model's name, and whether the choices go together.

    `only_planned` also takes models that can be planned but not trained yet.
    """
    problems: list[str] = []
    experiment: Experiment | None = None
    # What a run directory keeps of an experiment is an experiment too, of the version that it says.
    form = {"name": name, **(Experiment.upgraded(mapping) if "format" in mapping else mapping)}
    try:
        experiment = Experiment.model_validate(form)
    except ValidationError as error:
        problems += describe_mistakes(error)
    model: ModelReference | None = None
    if isinstance(form.get("model"), str) and form["model"]:
        try:
            model = resolve_model(form["model"])
        except UserError as error:
            problems.append(f"model: {error}")
    found: tuple[Objection, ...] = ()
    if experiment is not None and model is not None and model.family is not None:
        found = objections(
            experiment,
            model.family,
            distilled=model.distilled,
            only_planned=only_planned,
            device_type=_named_device(experiment),
        )
        problems += [objection.text for objection in found if objection.severity == "refused"]
    if problems:
        raise ExperimentErrors(source, problems)
    assert experiment is not None, "nothing was wrong with it"
    assert model is not None, "nothing was wrong with it"
    # One experiment, however its model was spelt.
    experiment = experiment.model_copy(update={"model": model.asked})
    notes = () if model.note is None else (f"model: {model.note}",)
    return Asked(mapping, experiment, model, (*notes, *(o.text for o in found if o.severity == "warning")))


def _named_device(experiment: Experiment) -> DeviceType | None:
    """What is certain of the device before one is looked for: "cuda" may be NVIDIA's or AMD's."""
    device = experiment.parallel.device
    return device if device in ("cpu", "mps") else None


def _name_from(path: Path) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in path.stem).lstrip("._-")
    return kept[:100] or "experiment"
