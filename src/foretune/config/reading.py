"""From a file and overrides to a checked Experiment."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from foretune.choices.capabilities import Objection, objections
from foretune.choices.experiment import Experiment
from foretune.choices.model import ModelReference, resolve_model
from foretune.config.mistakes import describe_mistakes
from foretune.config.overrides import apply_overrides
from foretune.core.errors import ExperimentErrors, UserError


@dataclass(frozen=True)
class Asked:
    """An experiment as it was asked and as it was understood."""

    as_asked: dict[str, Any]
    """The file's content with the overrides in it, before any default."""
    experiment: Experiment
    model: ModelReference
    warnings: tuple[str, ...]


def read_experiment(path: Path, overrides: Iterable[str] = ()) -> Asked:
    """Reads and checks an experiment file; raises with every mistake at once."""
    mapping = apply_overrides(load_yaml(path), overrides)
    mapping.setdefault("name", _name_from(path))
    return understand(mapping, source=str(path))


def understand(mapping: dict[str, Any], *, source: str) -> Asked:
    """Checks a mapping as an experiment: its form, the model's name, and whether the choices go together."""
    problems: list[str] = []
    experiment: Experiment | None = None
    form = {key: value for key, value in mapping.items() if key not in ("format", "format_version")}
    try:
        experiment = Experiment.model_validate(form)
    except ValidationError as error:
        problems += describe_mistakes(error, form)
    model: ModelReference | None = None
    if isinstance(mapping.get("model"), str):
        try:
            model = resolve_model(mapping["model"])
        except UserError as error:
            problems.append(f"model: {error}")
    found: tuple[Objection, ...] = ()
    if experiment is not None and model is not None and model.family is not None:
        found = objections(experiment, model.family, distilled=model.distilled)
        problems += [objection.text for objection in found if objection.severity == "refused"]
    if problems:
        raise ExperimentErrors(source, problems)
    assert experiment is not None, "nothing was wrong with it"
    assert model is not None, "nothing was wrong with it"
    return Asked(mapping, experiment, model, tuple(o.text for o in found if o.severity == "warning"))


def load_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping; a key that stands twice is an error, because one of the two would be lost."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{path} cannot be read: {reason}. Type: foretune init {path}") from error
    try:
        mapping = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {error}") from error
    if not isinstance(mapping, dict):
        raise UserError(f"{path} should hold a mapping such as `model: flux.1-dev`. Type: foretune init {path}")
    return mapping


def _name_from(path: Path) -> str:
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in path.stem).lstrip("._-")
    return kept[:100] or "experiment"


class _StrictLoader(yaml.SafeLoader):
    """Refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.YAMLError(f"the key {key!r} stands twice, again in line {line}")
            seen.add(key)
        return super().construct_mapping(node, deep)
