"""A question of the planner's page: what is typed or linked, and the same for the command line."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self
from urllib.parse import urlencode

from foretune import catalog
from foretune.choices.method import METHODS
from foretune.core.errors import UnknownName, UserError
from foretune.planner.asking import ALL, COMMON
from foretune.planner.knobs import EXPANDABLE, EXPANDABLE_VALUE

_MOST_LETTERS = 400
_EXPANDS = f"{EXPANDABLE}={EXPANDABLE_VALUE}"
_NOT_CARDS = (ALL, COMMON, "here")


@dataclass(frozen=True, kw_only=True)
class Question:
    """One model on one card. Empty text is the model's own size, its own length, or the usual rank."""

    model: str
    method: str = "lora"
    rank: str = ""
    size: str = ""
    """1024, or 832x480."""
    frames: str = ""
    on: str
    """A card, or its memory: rtx-4090, 16GiB."""
    settings: str = ""
    """Further settings as they are typed for `foretune plan`, with spaces between."""

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """Checks what a link or a form holds; raises for what is no question."""
        texts: dict[str, str] = {}
        for field in fields(cls):
            value = raw.get(field.name, "")
            if not isinstance(value, str) or len(value) > _MOST_LETTERS or not value.isprintable():
                raise UserError(f"{field.name} must be a line of at most {_MOST_LETTERS} letters")
            texts[field.name] = value.strip()
        question = cls(**{**texts, "method": texts["method"] or "lora"})
        if question.model not in catalog.denoisers():
            raise UnknownName("model", question.model, catalog.denoisers())
        if question.method not in METHODS:
            raise UnknownName("method", question.method, METHODS)
        if not re.fullmatch(r"[\w.:=+ -]+", question.on) or question.on in _NOT_CARDS:
            raise UserError("Name one card or its memory, such as rtx-4090 or 16GiB")
        return question

    @property
    def fragment(self) -> str:
        """The part of a link behind the #. Fields at their default are left out; the page's script writes the same."""
        return urlencode([(f.name, text) for f in fields(self) if (text := getattr(self, f.name)) != f.default])

    @property
    def expandable_segments(self) -> bool:
        return _EXPANDS in self._words()

    def changes(self) -> tuple[str, ...]:
        """The settings, as `key=value`."""
        return tuple(self._changes())

    def command(self) -> str:
        """The same question for a terminal."""
        words = ["foretune", "plan", self.model, *self.changes(), "--on", self.on]
        return shlex.join([*words, "--expandable-segments"] if self.expandable_segments else words)

    def _changes(self) -> Iterator[str]:
        yield f"method.kind={self.method}"
        for key, text in (("method.rank", self.rank), ("data.resolution", self.size), ("data.num_frames", self.frames)):
            if text:
                yield f"{key}={text}"
        yield from (word for word in self._words() if word != _EXPANDS)

    def _words(self) -> list[str]:
        try:
            words = shlex.split(self.settings)
        except ValueError as error:
            raise UserError(f"The settings end within quotation marks: {self.settings}") from error
        if any(word.startswith("model=") for word in words):
            raise UserError("Choose the model in its own field, not by a setting")
        return words
