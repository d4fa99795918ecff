"""The keys of a configuration of another program: read with their types, and each answered once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from foretune.config.mistakes import not_one_of, shown_value

Outcome = Literal["translated", "same", "not needed", "not supported", "unknown"]
"""same: what is the case here without any setting."""

_YES = ("true", "yes", "y", "on", "t", "1")
_NO = ("false", "no", "n", "off", "f", "0")


@dataclass(frozen=True)
class KeyAnswer:
    """What became of one key of the file."""

    key: str
    """As it stands in the file, with its section: fsdp_config.fsdp_version."""
    value: Any
    outcome: Outcome
    text: str
    """The setting it became; why it is not needed; or why it is not supported, and the nearest thing that works."""


class ConfigKeys:
    """The values of a file by key. Values of the wrong type are kept as problems, so that all are reported at once."""

    def __init__(self, values: Mapping[str, Any], names: Mapping[str, str]) -> None:
        """`names` are the keys as they stand in the file, where they are spelt differently there."""
        self._values = dict(values)
        self._names = names
        self._answers: dict[str, KeyAnswer] = {}
        self.read: set[str] = set()
        """Keys that were looked for, whether they are there or not: those that are known."""
        self.problems: list[str] = []

    def __contains__(self, key: str) -> bool:
        """Whether the key is there and has a value."""
        return self.get(key) is not None

    def get(self, key: str) -> Any:
        self.read.add(key)
        return self._values.get(key)

    def name(self, key: str) -> str:
        return self._names.get(key, key)

    @property
    def answers(self) -> tuple[KeyAnswer, ...]:
        """In the order of the file; every key has one once all are answered."""
        return tuple(self._answers[key] for key in self._values if key in self._answers)

    def unanswered(self) -> Iterator[str]:
        yield from [key for key in self._values if key not in self._answers]

    def answer(self, key: str, outcome: Outcome, text: str) -> None:
        """Answers a key, if the file has it. The first answer counts."""
        if key in self._values and key not in self._answers:
            self._answers[key] = KeyAnswer(self.name(key), self._values[key], outcome, text)

    def integer(self, key: str, default: int, *, at_least: int = 1) -> int:
        value = self.get(key)
        if value is None:
            return default
        # What a questionnaire or a person wrote: 8, "8", and 5e8 for bucket sizes.
        found = _as_number(value)
        if found is None or found != int(found) or found < at_least:
            what = "a whole number" if at_least == 0 else f"a whole number, at least {at_least}"
            self._wrong(key, f"should be {what} (found {shown_value(value)})")
            return default
        return int(found)

    def number(self, key: str, default: float | None) -> float | None:
        """A finite number that is not negative."""
        value = self.get(key)
        if value is None:
            return default
        found = _as_number(value)
        if found is None or found < 0:
            self._wrong(key, f"should be a number, at least 0 (found {shown_value(value)})")
            return default
        return found

    def boolean(self, key: str, default: bool = False) -> bool:
        """accelerate reads YAML 1.1, in which `yes` and `off` are true and false."""
        value = self.get(key)
        if value is None:
            return default
        word = str(value).strip().lower()
        if word not in (*_YES, *_NO):
            self._wrong(key, f"should be true or false (found {shown_value(value)})")
            return default
        return word in _YES

    def choice(self, key: str, known: Sequence[str], default: str) -> str:
        """One of the known words, whatever its case."""
        value = self.get(key)
        if value is None:
            return default
        by_lower = {word.lower(): word for word in known}
        # YAML 1.1 makes false of an unquoted NO; a file in JSON may have that.
        found = by_lower.get("no" if value is False else str(value).strip().lower())
        if found is None:
            self._wrong(key, not_one_of(value, known))
            return default
        return found

    def _wrong(self, key: str, sentence: str) -> None:
        problem = f"{self.name(key)}: {sentence}"
        if problem not in self.problems:
            self.problems.append(problem)


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if abs(found) < float("inf") else None


def is_off(value: Any) -> bool:
    """Whether a value asks for nothing: empty, false, or a word for it."""
    return value in (None, False, "", 0) or value in ([], {}) or str(value).lower() in ("no", "none", "false")
