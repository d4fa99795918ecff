"""A configuration on its way to an experiment: settings, what became of each key, and what had to be assumed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from foretune.config.from_accelerate.config_keys import ConfigKeys
from foretune.config.from_accelerate.draft import sections_of, setting_text
from foretune.config.from_trainers.programs import OtherTrainer
from foretune.config.mistakes import shown_value

_MAY_BE_NULL = ("train.max_grad_norm", "save.every", "validate.every")
Reading = Literal["whole", "number", "yes", "text"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A key with a setting of the same meaning."""

    key: str
    setting: str
    reading: Reading
    default: Any = None
    """What the program does without the key; None if that is what happens here, or if something else decides."""
    turn: Callable[[Any], Any] = lambda value: value
    """From the program's value to ours; None is off."""
    remark: str = ""
    at_least: int = 1
    """Of a whole number."""


@dataclass
class Sheet:
    """One translation."""

    program: OtherTrainer
    keys: ConfigKeys
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of an experiment by dotted key."""
    assumed: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """Why no experiment is like it."""
    model: str | None = None
    """Catalogue name of the denoiser."""
    family: str | None = None
    unimitated: list[str] = field(default_factory=list)
    """What a plan of this file leaves out."""
    quantizes_by_torchao: bool = True
    """Whether the program's habits with layers of torchao apply."""

    def set(self, key: str, setting: str, value: Any, remark: str = "") -> None:
        """A setting that comes from a key; nested keys of a setting that is a mapping are dotted."""
        self.settings[setting] = value
        self.keys.answer(key, "translated", f"{setting_text(setting, value)}{'; ' if remark else ''}{remark}")

    def lacks(self, key: str, text: str) -> None:
        """A key without an equivalent."""
        self.keys.answer(key, "not supported", text)

    def refuse(self, key: str, reason: str) -> None:
        """A key that makes it another kind of training."""
        self.refusals.append(f"{self.keys.name(key)}: {reason}")
        self.lacks(key, reason)

    def assume(self, text: str) -> None:
        if text not in self.assumed:
            self.assumed.append(text)

    def apply(self, rules: tuple[Rule, ...]) -> None:
        for rule in rules:
            self._apply(rule)

    def _apply(self, rule: Rule) -> None:
        found = read(self.keys, rule)
        is_there = rule.key in self.keys
        # A key of an older version may have given the setting already.
        if not is_there and (rule.default is None or rule.setting in self.settings):
            return
        if is_there and found is None:  # a mistake, which is noted
            return
        value = rule.turn(found if is_there else rule.default)
        if value is None and rule.setting not in _MAY_BE_NULL:
            self.keys.answer(rule.key, "same", "off")
        elif is_there:
            self.set(rule.key, rule.setting, value, rule.remark)
        else:
            self.settings[rule.setting] = value
            self.assume(f"{rule.key} is not set: {rule.default}, its default in {self.program.title}")

    def mapping(self) -> dict[str, Any]:
        """The experiment."""
        whole = {name: value for name, value in self.settings.items() if "." not in name}
        return {**whole, **sections_of({name: value for name, value in self.settings.items() if "." in name})}


def read(keys: ConfigKeys, rule: Rule) -> Any:
    """The value of a rule's key with its type; None if the key is not there or wrong, which is noted."""
    if rule.key not in keys:
        return None
    if rule.reading == "whole":
        return keys.integer(rule.key, 0, at_least=rule.at_least)
    if rule.reading == "number":
        return keys.number(rule.key, None)
    if rule.reading == "yes":
        return keys.boolean(rule.key)
    return text_of(keys, rule.key)


def text_of(keys: ConfigKeys, key: str) -> str | None:
    """The text of a key; a number counts as text."""
    value = keys.get(key)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, (dict, list, bool)):
        problem = f"{keys.name(key)}: should be text (found {shown_value(value)})"
        if problem not in keys.problems:
            keys.problems.append(problem)
        return None
    return str(value).strip()


def flat(mapping: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Keys of sections as `section.key`, entries of a list of sections as `section.0.key`."""
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{key}.")
        elif isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
            for number, entry in enumerate(value):
                yield from flat(entry, f"{before}{key}.{number}.")
        else:
            yield f"{before}{key}", value


def matching(keys: ConfigKeys, pattern: str) -> list[str]:
    """Keys without an answer whose names fit a pattern."""
    return [key for key in keys.unanswered() if fnmatchcase(key, pattern)]
