"""From another trainer's configuration to an experiment. None of these programs is needed, and nothing is run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from foretune.catalog import denoiser, family_facts
from foretune.choices.step_form import TrainerHabits
from foretune.config.from_accelerate.config_keys import ConfigKeys, KeyAnswer
from foretune.config.from_accelerate.known_keys import answer_rest
from foretune.config.from_trainers import ai_toolkit, diffusers_scripts, kohya, onetrainer, simpletuner
from foretune.config.from_trainers.detecting import Found, find
from foretune.config.from_trainers.programs import PROGRAMS, OtherTrainer
from foretune.config.from_trainers.sheet import Sheet
from foretune.config.origin import Origin
from foretune.config.reading import understand
from foretune.config.yaml_files import load_foreign_mapping
from foretune.core.errors import ExperimentErrors, Refused, UserError

TRANSLATORS: Mapping[str, ModuleType] = {
    "simpletuner": simpletuner,
    "ai-toolkit": ai_toolkit,
    "sd-scripts": kohya,
    "onetrainer": onetrainer,
    "diffusers": diffusers_scripts,
}
"""Modules with `translate`, `RULES`, `OTHERS` and `KNOWN`"""


@dataclass(frozen=True, kw_only=True)
class TranslatedTraining:
    """What a file became."""

    program: OtherTrainer
    mapping: Mapping[str, Any]
    """The experiment."""
    model: str
    """Name of its denoiser in the catalogue."""
    family: str
    answers: tuple[KeyAnswer, ...]
    """What became of each key, in the order of the file."""
    assumed: tuple[str, ...]
    """What the file leaves open, and how it was read."""
    unimitated: tuple[str, ...]
    """What a plan of this file leaves out."""
    habits: TrainerHabits

    def planned(self) -> dict[str, Any]:
        """The experiment as it is planned: by the catalogue's model, with captions as long as in that program."""
        mapping = {**self.mapping, "model": self.model}
        tokens = self.program.dialect.num_text_tokens.get(self.family)
        data = dict(mapping["data"])
        facts = family_facts(self.family)
        if tokens is not None and facts.has_text and not facts.text_is_fixed:
            data.setdefault("max_text_tokens", max(8, tokens))
        if denoiser(self.model).distilled:
            mapping["accept"] = ["distilled-base"]
        return {**mapping, "data": data}

    def origin(self, file: str) -> Origin:
        """What a plan tells of it."""
        named = str(self.mapping["model"])
        return Origin(
            title=self.program.title,
            file=file,
            habits=self.habits,
            is_backtested=self.program.is_backtested,
            model=None if named == self.model else named,
            assumed=self.assumed,
            lacking=tuple((answer.key, answer.text) for answer in self.keys_with("not supported")),
            unknown=tuple(answer.key for answer in self.keys_with("unknown")),
            unimitated=(*self.unimitated, *self.program.unlike()),
        )

    def keys_with(self, *outcomes: str) -> tuple[KeyAnswer, ...]:
        return tuple(answer for answer in self.answers if answer.outcome in outcomes)


def translate(path: Path, model: str | None = None) -> TranslatedTraining:
    """Reads a configuration; raises with everything that is wrong with it, or that no experiment can express.

    `model` is a denoiser of the catalogue that comes before what the file names.
    """
    found = find(path)
    if found is None and path.suffix.lower() in (".yaml", ".yml"):
        load_foreign_mapping(path, if_missing="", example="`job: extension` and `config: {process: [...]}`")
    if found is None:
        known = "; ".join(f"{program.title}: {program.file}" for program in PROGRAMS.values())
        raise UserError(f"{path} is no configuration of a trainer that is known here. Known: {known}")
    return translate_found(path, found, model)


def translate_found(path: Path, found: Found, model: str | None = None) -> TranslatedTraining:
    keys = ConfigKeys(found.values, {})
    sheet = Sheet(found.program, keys)
    if model is not None:
        sheet.settings["model"] = model
    translator = TRANSLATORS[found.program.key]
    translator.translate(sheet, path.parent)
    answer_rest(keys, translator.KNOWN, {})
    if keys.problems:
        raise ExperimentErrors(str(path), keys.problems)
    if sheet.refusals:
        raise Refused(_refusal(path, found.program, sheet.refusals))
    assert sheet.model is not None, "refused"
    assert sheet.family is not None, "refused"
    translation = TranslatedTraining(
        program=found.program,
        mapping=sheet.mapping(),
        model=sheet.model,
        family=sheet.family,
        answers=keys.answers,
        assumed=tuple(sheet.assumed),
        unimitated=tuple(dict.fromkeys(sheet.unimitated)),
        habits=_habits(sheet),
    )
    _check(path, translation)
    return translation


def _habits(sheet: Sheet) -> TrainerHabits:
    habits = sheet.program.habits
    return habits if sheet.quantizes_by_torchao else replace(habits, torchao_autograd=False)


def _check(path: Path, found: TranslatedTraining) -> None:
    """Whether the settings go together."""
    try:
        understand(found.planned(), source=None, only_planned=True)
    except ExperimentErrors as error:
        raise Refused(_refusal(path, found.program, error.problems)) from error


def _refusal(path: Path, program: OtherTrainer, reasons: Any) -> str:
    listed = "\n".join(f"  {number}. {reason}" for number, reason in enumerate(reasons, start=1))
    return f"{path} is a configuration of {program.title} that no experiment can express:\n{listed}"
