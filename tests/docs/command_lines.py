"""Every `foretune ...` on a page, read as the command line would read it, without running anything.

Those in ```bash blocks run as well. The others need GPUs, a cluster, a network or hours: here at least their verbs,
options and keys must exist.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import typer

from foretune.choices.earlier_keys import RENAMED_KEYS
from foretune.cli.main import app
from foretune.config.reference import reference_pages

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`(foretune [^`\n]+)`(?!`)")
_KEY = re.compile(r"^([a-z_]+(?:\.[a-z_]+)+)=")
_PLACEHOLDER = re.compile(r"[<>|\[\]]|\.\.\.")
"""What only the reader can fill in, and alternatives: such words are not read."""


def commands(page: str) -> Iterator[str]:
    """Each command of a page on one line, without what follows a pipe or a comment."""
    for _, body in _FENCE.findall(page):
        for line in body.replace("\\\n", " ").splitlines():
            for part in re.split(r"&& |\| |; ", line.split("  #")[0].strip().removeprefix("$ ")):
                if part.strip().removeprefix("- run: ").startswith("foretune "):
                    yield part.strip().removeprefix("- run: ")
    yield from _SPAN.findall(page)


def mistakes(command: str) -> list[str]:
    """What no version of the command line would accept."""
    words = shlex.split(command.split(" > ", maxsplit=1)[0], comments=True)[1:]
    found: list[str] = []
    options: set[str] = {"-h", "--help", "--version"}
    group = _application()
    while words and words[0] in group:
        verb = group[words.pop(0)]
        options |= verb.options
        group = verb.commands
    is_verb = bool(words) and words[0][0] != "-" and not words[0].isupper() and not _PLACEHOLDER.search(words[0])
    if is_verb and group:
        found.append(f"there is no command {words[0]}")
    for word in words:
        if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word) and word.partition("=")[0] not in options:
            found.append(f"there is no option {word}")
        key = _KEY.match(word)
        if key and not is_key(key[1]):
            found.append(f"there is no key {key[1]}")
    return found


def is_key(name: str) -> bool:
    """Whether an experiment can have this dotted key; keys of nested kinds are known by their first two parts."""
    return ".".join(name.split(".")[:2]) in _keys() or name in _keys()


@cache
def _keys() -> frozenset[str]:
    sections = {name.removesuffix(".md"): text for name, text in reference_pages().items()}
    single = re.findall(r"^\| `(\w+)`", sections.pop("index"), re.MULTILINE)
    nested = (
        f"{name}.{key}" for name, text in sections.items() for key in re.findall(r"^\| `(\w+)`", text, re.MULTILINE)
    )
    return frozenset([*single, *sections, *nested, *RENAMED_KEYS])


@dataclass(frozen=True)
class Verb:
    """A command, or a group of commands."""

    options: frozenset[str]
    commands: Mapping[str, "Verb"]


@cache
def _application() -> Mapping[str, Verb]:
    return _commands(typer.main.get_command(app))


def _commands(group: Any) -> Mapping[str, Verb]:
    return {
        name: Verb(
            frozenset(opt for param in command.params for opt in (*param.opts, *param.secondary_opts)),
            _commands(command),
        )
        for name, command in getattr(group, "commands", {}).items()
    }
