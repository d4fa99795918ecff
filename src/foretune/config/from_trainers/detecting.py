"""Which program a configuration is for, by its keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.config.from_trainers.programs import PROGRAMS, Program
from foretune.config.from_trainers.sheet import flat
from foretune.core.errors import UserError
from foretune.core.input_files import parse_json, read_text

_MOST_BYTES = 2**20
_SUFFIXES = (".json", ".yaml", ".yml", ".toml", ".sh", ".bash", ".txt", ".bat", ".example")


@dataclass(frozen=True)
class Found:
    """A configuration that was recognised."""

    program: Program
    values: dict[str, Any]
    """Its keys, those of sections dotted."""


def find(path: Path) -> Found | None:
    """The program whose configuration a file is; None if it is none of them. Raises where it cannot be read."""
    if path.suffix.lower() not in _SUFFIXES or not path.is_file():
        return None
    text = read_text(path, _MOST_BYTES)
    if path.suffix.lower() in (".json", ".example"):
        return _from_json(path, text)
    return None


def _from_json(path: Path, text: str) -> Found | None:
    try:
        mapping = parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(mapping, dict):
        return None
    plain = {key.removeprefix("--"): value for key, value in mapping.items()}
    if "model_family" in plain or ("model_type" in plain and "data_backend_config" in plain):
        return Found(PROGRAMS["simpletuner"], plain)
    return None


def _as_values(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return dict(flat(mapping))
