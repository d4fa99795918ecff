"""A translated configuration as YAML: sections for an experiment file, and everything else as comments."""

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from foretune.config.from_accelerate.config_keys import KeyAnswer, Outcome
from foretune.config.from_accelerate.draft import sections_of, setting_text
from foretune.config.from_accelerate.importing import Translation
from foretune.config.yaml_files import typed
from foretune.core.input_files import shown

_TITLES: dict[Outcome, str] = {
    "translated": "Translated",
    "same": "The same by default",
    "not supported": "Not supported",
    "unknown": "Unknown keys",
    "not needed": "Not needed here",
}
_ORDER = ("parallel", "train", "optimizer", "quantize", "levers")
_WIDTH = 100
_MOST_LETTERS = 40
_SECRET = ("hub_token", "huggingface_token", "api_key", "password", "secret", "access_key")


def fragment(source: str, found: Translation) -> str:
    """Sections that can be pasted into an experiment file, then comments."""
    lines = [f"# From {shown(source)}, a config of Hugging Face accelerate. Add these keys to an experiment file."]
    sections = sections_of(dict(found.settings))
    lines += [f"{name}: {typed(sections[name])}" for name in sorted(sections, key=_ORDER.index)]
    machines = "" if found.num_machines == 1 else f", on each of the {found.num_machines} machines"
    lines += ["", f"# Start{machines}:", f"#   {shown(found.start)}"]
    lines += [f"# Or, with the experiment file as it is{machines}:", f"#   {shown(_with_changes(found))}"]
    lines += wrapped("The same", found.same)
    lines += wrapped("Different", found.differs)
    for outcome, title in _TITLES.items():
        lines += wrapped(title, entries([one for one in found.answers if one.outcome == outcome]))
    return "\n".join(lines) + "\n"


def _with_changes(found: Translation) -> str:
    changes = [shlex.quote(setting_text(setting, value)) for setting, value in found.settings.items()]
    return f"{found.start} {' '.join(changes)}"


def wrapped(title: str, entries: Sequence[str]) -> Iterator[str]:
    """A heading and its entries; nothing where there are none."""
    if entries:
        yield f"# {title}:"
    for entry in entries:
        yield from textwrap.wrap(
            entry,
            _WIDTH,
            initial_indent="#   ",
            subsequent_indent="#     ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def entries(answers: Iterable[KeyAnswer]) -> list[str]:
    """Keys with the same answer stand together."""
    by_text: dict[str, list[str]] = {}
    for answer in answers:
        by_text.setdefault(answer.text, []).append(f"{shown(answer.key)}: {value_text(answer)}")
    return [f"{', '.join(keys)} -> {shown(text)}" for text, keys in by_text.items()]


def value_text(answer: KeyAnswer) -> str:
    """Short, on one line. Of lists and sections only the size, of keys to services nothing: they may be secrets."""
    value: Any = answer.value
    if value and any(word in answer.key.lower() for word in _SECRET):
        return "(not shown)"
    if isinstance(value, (list, dict)) and value:
        return f"({len(value)} entries)" if len(value) > 1 else "(1 entry)"
    text = shown(typed(value))
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}..."
