"""`key=value` arguments, as one types them on a command line."""

from collections.abc import Iterable
from typing import Any

import yaml

from foretune.core.errors import UserError


def parse_overrides(arguments: Iterable[str]) -> list[tuple[tuple[str, ...], Any]]:
    """`train.steps=10` becomes (("train", "steps"), 10); values are read as YAML."""
    parsed = []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            raise UserError(f"{argument!r} is not an override. Type key=value, for example train.steps=100")
        try:
            value = yaml.safe_load(text) if text.strip() else None
        except yaml.YAMLError as error:
            raise UserError(f"The value in {argument!r} is not YAML: {error}") from error
        parsed.append((path, value))
    return parsed


def apply_overrides(mapping: dict[str, Any], arguments: Iterable[str]) -> dict[str, Any]:
    """A copy of the mapping with the overrides in it.

    Where `kind` of a section is overridden, the file's other keys of that section belong to the old kind: they are
    dropped, so that `method.kind=full` works on a file that asks for a LoRA of some rank.
    """
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in mapping.items()}
    overrides = parse_overrides(arguments)
    for path, value in overrides:
        section = result.get(path[0])
        if path[1:] == ("kind",) and isinstance(section, dict) and section.get("kind", value) != value:
            result[path[0]] = {}
    for path, value in overrides:
        _set(result, path, value)
    return result


def _set(mapping: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        inner = mapping.get(key)
        inner = dict(inner) if isinstance(inner, dict) else {}
        mapping[key] = inner
        mapping = inner
    mapping[path[-1]] = value
