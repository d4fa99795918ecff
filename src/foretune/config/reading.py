"""From a file and overrides to a checked Experiment."""

import copy
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from foretune.choices.capabilities import objections
from foretune.choices.earlier_keys import (
    dotted_keys,
    lost_choices,
    mixed_keys,
    notes_on,
    with_current_keys,
    without_removed_keys,
)
from foretune.choices.experiment import Experiment
from foretune.choices.model import ModelReference, resolve_model
from foretune.choices.objections import DeviceType, Objection
from foretune.config.mistakes import describe_mistakes
from foretune.config.origin import Origin
from foretune.config.overrides import overridden, parse_overrides
from foretune.config.places import find_place
from foretune.config.readiness import Need, missing_here
from foretune.config.yaml_files import load_mapping
from foretune.core.errors import ExperimentErrors, Mistakes, UserError

Check = Callable[[Experiment], Iterable[str]]
"""What else may be wrong with an experiment; the sentences say what."""


@dataclass(frozen=True)
class Asked:
    """An experiment as it was asked and as it was understood."""

    as_asked: dict[str, Any]
    """The file's content with the overrides in it, before any default."""
    experiment: Experiment
    model: ModelReference
    warnings: tuple[str, ...]
    origin: Origin | None = None
    """The program that would run it, if it is not this one."""
    is_by_name: bool = False
    """Whether a model was named instead of a file, so that what was not typed is what `foretune init` writes."""
    has_data: bool = True
    """Whether its data were named; otherwise they are generated."""


def read_experiment(
    path: Path,
    overrides: Iterable[str] = (),
    *,
    only_planned: bool = False,
    needs: Collection[Need] = (),
    checks: Iterable[Check] = (),
) -> Asked:
    """Reads and checks an experiment file; raises with every mistake at once. A file without `name` gives its own.

    The file that a run keeps of its experiment is taken for the experiment, with the defaults it had then.
    """
    mistakes, overrides = Mistakes(), tuple(overrides)
    asked: Asked | None = None
    content = mistakes.attempt(load_mapping, path)
    if content is None:
        parse_overrides(overrides, mistakes)
    else:
        is_of_a_run = isinstance(content.get("resolved"), dict) and "asked" in content
        mapping = overridden(content["resolved"] if is_of_a_run else content, overrides, mistakes)
        understood = partial(understand, source=str(path), name=as_run_name(path.stem), only_planned=only_planned)
        understood = partial(understood, needs=needs, checks=checks)
        asked = mistakes.attempt(_without_blaming_the_file, understood, mapping, overrides)
    mistakes.raise_all()
    assert asked is not None, "nothing was wrong with it"
    return asked


def _without_blaming_the_file(
    understood: Callable[[dict[str, Any]], Asked], mapping: dict[str, Any], overrides: Iterable[str]
) -> Asked:
    """Mistakes of overrides are the command's; the file's name stands only before its own."""
    try:
        return understood(mapping)
    except ExperimentErrors as error:
        typed = {override.partition("=")[0].strip() for override in overrides}
        named = [re.split(r"[:,\s]", problem, maxsplit=1)[0] for problem in error.problems]
        is_typed = [name in typed for name in named]
        if not any(is_typed):
            raise
        pairs = zip(error.problems, is_typed, strict=True)
        problems = [problem if is_own else f"{error.source}: {problem}" for problem, is_own in pairs]
        raise ExperimentErrors(None, problems) from error


def understand(
    mapping: dict[str, Any],
    *,
    source: str | None,
    name: str = "experiment",
    only_planned: bool = False,
    needs: Collection[Need] = (),
    checks: Iterable[Check] = (),
) -> Asked:
    """Checks a mapping as an experiment: its form, the model's name, and whether the choices go together.

    `only_planned` also takes models that can be planned but not trained yet. `needs` is what has to be there on this
    machine; a plan needs nothing. `checks` are further ones, whose answers are reported together with all others.
    """
    experiment: Experiment | None = None
    readable: Experiment | None
    wrong: frozenset[str]
    # What a run directory keeps of an experiment is an experiment too, of the version that it says.
    written = Experiment.upgraded(mapping) if "format" in mapping else mapping
    problems = [f"{sentence}." for sentence in (*mixed_keys(dotted_keys(written)), *lost_choices(written))]
    form = {"name": name, **without_removed_keys(with_current_keys(written))}
    try:
        experiment = Experiment.model_validate(form)
        readable, wrong = experiment, frozenset[str]()
    except ValidationError as error:
        problems += describe_mistakes(error)
        readable, wrong = _without_mistakes(form, error)
    model: ModelReference | None = None
    if isinstance(form.get("model"), str) and form["model"]:
        try:
            model = resolve_model(form["model"])
        except UserError as error:
            problems.append(f"model: {error}")
    found: tuple[Objection, ...] = ()
    not_together: list[str] = []
    if readable is not None and model is not None and model.family is not None:
        found = objections(
            readable,
            model.family,
            distilled=model.distilled,
            only_planned=only_planned,
            device_type=_named_device(readable),
        )
        refused = (objection.text for objection in found if objection.severity == "refused")
        # What stands in the place of a mistake is a default that nobody asked for.
        not_together = [text for text in refused if not any(key in text for key in wrong)]
        problems += not_together
    if readable is not None:
        sections = {key.partition(".")[0] for key in wrong}
        problems += [text for section, text in missing_here(readable, needs) if section not in sections]
        problems += [text for check in checks for text in check(readable)]
    if problems:
        raise ExperimentErrors(source, problems, not_together)
    assert experiment is not None, "nothing was wrong with it"
    assert model is not None, "nothing was wrong with it"
    # One experiment, however its model was spelt.
    experiment = experiment.model_copy(update={"model": model.asked})
    notes = notes_on(written) if model.note is None else [f"model: {model.note}", *notes_on(written)]
    return Asked(mapping, experiment, model, (*notes, *(o.text for o in found if o.severity == "warning")))


def _without_mistakes(form: dict[str, Any], error: ValidationError) -> tuple[Experiment | None, frozenset[str]]:
    """The experiment with defaults in the place of its mistakes, if that can be, and the keys that were wrong.

    So that what else is wrong is reported together with them.
    """
    rest = copy.deepcopy(form)
    wrong = set()
    for details in error.errors():
        path = find_place(details["loc"]).path
        wrong.add(".".join(path))
        where: Any = rest
        for key in path[:-1]:
            where = where.get(key) if isinstance(where, dict) else None
        if isinstance(where, dict) and path:
            where.pop(path[-1], None)
    try:
        return Experiment.model_validate(rest), frozenset(wrong)
    except ValidationError:
        return None, frozenset(wrong)


def _named_device(experiment: Experiment) -> DeviceType | None:
    """What is certain of the device before one is looked for: "cuda" may be NVIDIA's or AMD's."""
    device = experiment.parallel.device
    return device if device in ("cpu", "mps") else None


def as_run_name(text: str) -> str:
    """The `name` of an experiment that is nearest to a text, which names the folder of its runs."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text).lstrip("._-")
    return kept[:100] or "experiment"
