"""`key=value` arguments, as one types them on a command line."""

from collections.abc import Iterable
from typing import Any

import yaml

from foretune.choices.earlier_keys import other_name
from foretune.config.yaml_files import parse, what_is_wrong
from foretune.core.errors import Mistakes, UserError


def parse_overrides(arguments: Iterable[str], mistakes: Mistakes) -> list[tuple[tuple[str, ...], Any]]:
    """`train.steps=10` becomes (("train", "steps"), 10); values are read as YAML."""
    found = (mistakes.attempt(_parsed, argument) for argument in arguments)
    return [override for override in found if override is not None]


def apply_overrides(mapping: dict[str, Any], arguments: Iterable[str]) -> dict[str, Any]:
    """A copy of the mapping with the overrides in it. Raises for all that are wrong.

    Where `kind` of a section is overridden, the file's other keys of that section belong to the old kind: they are
    dropped, so that `method.kind=full` works on a file that asks for a LoRA of some rank.
    """
    mistakes = Mistakes()
    result = overridden(mapping, arguments, mistakes)
    mistakes.raise_all()
    return result


def overridden(mapping: dict[str, Any], arguments: Iterable[str], mistakes: Mistakes) -> dict[str, Any]:
    """A copy of the mapping with those overrides in it that can be applied; the others are left with `mistakes`."""
    result = dict(mapping)
    overrides = parse_overrides(arguments, mistakes)
    for path, value in overrides:
        section = result.get(path[0])
        if path[1:] == ("kind",) and isinstance(section, dict) and section.get("kind", value) != value:
            result[path[0]] = {}
    for path, value in overrides:
        mistakes.attempt(_set, result, path, value)
    return result


def _parsed(argument: str) -> tuple[tuple[str, ...], Any]:
    key, equals, text = argument.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise UserError(f"{argument!r} is not an override. Write key=value, for example train.steps=100")
    try:
        return path, parse(text)
    except yaml.YAMLError as error:
        raise UserError(
            f"The value in {argument!r} cannot be read: {what_is_wrong(error)}. "
            f"Text with special characters goes in quotes: {key}='\"...\"'"
        ) from error


def _set(mapping: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Puts a value in its place, also of its key's other name; what stands on the way is copied, not changed."""
    where: dict[str, Any] | list[Any] = mapping
    for depth, key in enumerate(path[:-1], start=1):
        place = _place(where, path[:depth])
        inner = where.get(key) if isinstance(where, dict) else where[place]
        inner = list(inner) if isinstance(inner, list) else dict(inner) if isinstance(inner, dict) else {}
        where[place] = inner
        where = inner
    where[_place(where, path)] = value
    other = other_name(".".join(path))
    if other is not None and isinstance(where, dict):
        where.pop(other.rpartition(".")[2], None)


def _place(where: dict[str, Any] | list[Any], path: tuple[str, ...]) -> Any:
    """The last key of a path; in a list it is the number of an entry that is there, counted from 0."""
    key = path[-1]
    if isinstance(where, dict):
        return key
    if not key.isdecimal() or int(key) >= len(where):
        raise UserError(
            f"{'.'.join(path)} is not there: {'.'.join(path[:-1])} is a list of {len(where)}, counted from 0. "
            f"To replace the list: {'.'.join(path[:-1])}=[...]"
        )
    return int(key)
