"""experiment.yaml of many runs: read in pieces, because most runs share most of their pieces."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from foretune.choices.experiment import Experiment
from foretune.config.yaml_files import parse_written
from foretune.core.input_files import read_text
from foretune.core.values import WrongFormat

_MOST_BYTES = 4 * 2**20
_SECTIONS = ("asked", "resolved", "effective")
_SECTION = re.compile(r"^(\w+):[ ]*\n", re.MULTILINE)
# A key of the mapping below a section. Items of lists and continued lines do not begin with a letter there.
_KEY = re.compile(r"\n(?=  [A-Za-z_])")


def read_stored(path: Path, *, within: Path) -> tuple[Experiment, dict[str, Any]]:
    """The experiment as resolved, and what followed from it when it ran.

    Raises `WrongFormat` or `RefusedFile`, and OSError as `open` does.
    """
    text = read_text(path, _MOST_BYTES, within=within)
    try:
        content = _in_pieces(text)
        if content is None:
            content = parse_written(text)
        return Experiment.from_mapping(content["resolved"]), dict(content["effective"])
    except (yaml.YAMLError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise WrongFormat(f"{path} is not the experiment of a run, or is damaged: {reason}") from error


def _in_pieces(text: str) -> dict[str, Any] | None:
    """The same as reading the whole, ten times as fast; None where the text is not laid out as runs write it."""
    found = list(_SECTION.finditer(text))
    if tuple(match[1] for match in found) != _SECTIONS:
        return None
    _, resolved, effective = found
    try:
        content = {
            "resolved": _mapping(text[resolved.end() : effective.start()]),
            "effective": _mapping(text[effective.end() :]),
        }
    except (yaml.YAMLError, TypeError, ValueError):
        return None
    # Upgrades of older formats may change what they are given, and the pieces are shared.
    is_current = content["resolved"].get("format_version") == Experiment.format_version()
    return content if is_current else None


def _mapping(text: str) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for piece in _KEY.split("\n" + text):
        if piece.strip():
            whole.update(_piece(piece))
    return whole


@lru_cache(maxsize=8192)
def _piece(text: str) -> dict[str, Any]:
    return dict(parse_written(text))
