"""A command line in a file: variables that the file sets, the launcher, the script and its flags. Nothing is run."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SCRIPT = re.compile(r"(?:[\w./\\~${}-]*[/\\])?(?P<name>[A-Za-z0-9_]+)\.py$")
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+|set\s+)?(?P<name>[A-Za-z_]\w*)=(?P<value>.*)$")
_VARIABLE = re.compile(r"\$\{?(?P<name>[A-Za-z_]\w*)\}?")
_TRAINS = re.compile(r"(?:^|_)(?:train|tune)(?:_|$)|^fine_tune$")
_STARTERS = ("accelerate", "torchrun", "python", "python3", "deepspeed")


@dataclass(frozen=True)
class LaunchLine:
    """One command that starts a training."""

    script: str
    """Name of the script, without its folder and suffix."""
    launcher: Mapping[str, Any]
    """Options before the script."""
    flags: Mapping[str, Any]
    """Flags of the script: text, a list where several values follow, True where none does."""


def launch_line(text: str) -> LaunchLine | None:
    """The first training that a file starts; None if it starts none."""
    variables: dict[str, str] = {}
    for line in _joined(text):
        assigned = _ASSIGNMENT.match(line)
        if assigned is not None and not line.lstrip().startswith("--"):
            value = " ".join(_words(assigned["value"])) if assigned["value"].strip() else ""
            variables[assigned["name"]] = _filled(value, variables)
        words = [_filled(word, variables) for word in _words(line)]
        found = _parsed(words)
        if found is not None:
            return found
    return None


def _joined(text: str) -> Iterator[str]:
    """Lines with their continuations; flags on lines of their own belong to the command before them."""
    whole = ""
    for line in text.replace("\\\n", " ").replace("^\n", " ").replace("`\n", " ").splitlines():
        stripped = line.strip()
        if stripped.startswith("--") and whole:
            whole += f" {stripped}"
            continue
        if whole:
            yield whole
        whole = "" if stripped.startswith(("#", "REM ")) else stripped.removeprefix("! ").removeprefix("!")
    if whole:
        yield whole


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()


def _filled(word: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables.get(found["name"], found[0]), word)


def _parsed(words: Sequence[str]) -> LaunchLine | None:
    place = next((index for index, word in enumerate(words) if _SCRIPT.fullmatch(word)), None)
    if place is None or not any(word.rpartition("/")[2] in _STARTERS for word in words[:place]):
        return None
    found = _SCRIPT.fullmatch(words[place])
    assert found is not None, "it matched"
    if not _TRAINS.search(found["name"]):
        return None
    return LaunchLine(found["name"], _flags(words[:place]), _flags(words[place + 1 :]))


def _flags(words: Sequence[str]) -> dict[str, Any]:
    """Flags by name. Of a flag that stands twice the last counts, as in the scripts."""
    found: dict[str, list[str]] = {}
    name: str | None = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = [value] if equals else []
        elif name is not None and word not in ("&&", ";", "|", "&"):
            found[name].append(word)
    return {name: values[0] if len(values) == 1 else values or True for name, values in found.items()}
