"""Validation errors as sentences: where, what is the case, what was probably meant."""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from foretune.choices.experiment import Experiment
from foretune.core.errors import closest


def describe_mistakes(error: ValidationError, mapping: Mapping[str, Any]) -> list[str]:
    """One sentence for each thing that is wrong, in the order of the file's sections."""
    return [_sentence(details, mapping) for details in error.errors()]


def _sentence(details: ErrorDetails, mapping: Mapping[str, Any]) -> str:
    path, section = _walk(details["loc"], mapping)
    where = ".".join(path)
    kind, context = details["type"], details.get("ctx", {})
    if kind == "extra_forbidden":
        known = _keys(section)
        guess = closest(path[-1], known)
        hint = f"Did you mean {guess!r}?" if guess else f"Known here: {', '.join(known)}."
        return f"{where}: unknown key. {hint}"
    if kind == "missing":
        return f"{where}: is missing.{_help_text(section, path[-1])}"
    if kind == "union_tag_not_found":
        tags = str(context["discriminator"]).strip("'")
        return f"{where}.{tags}: is missing. Known: {_kinds(section, path[-1])}."
    if kind == "union_tag_invalid":
        return f"{where}.kind: {_not_one_of(str(context['tag']), _plain_list(str(context['expected_tags'])))}"
    if kind == "literal_error":
        return f"{where}: {_not_one_of(str(details['input']), _plain_list(str(context['expected'])))}"
    message = details["msg"].removeprefix("Value error, ")
    return f"{where or 'experiment'}: {message[:1].lower()}{message[1:]} (found {_shown(details['input'])})"


def _walk(loc: tuple[int | str, ...], mapping: Mapping[str, Any]) -> tuple[list[str], type[BaseModel]]:
    """The path as it stands in the file, and the section that the last key belongs to.

    A location inside a section with kinds also names the kind ("data", "folder", "path"); the file does not.
    """
    path: list[str] = []
    section: type[BaseModel] = Experiment
    value: Any = mapping
    for position, key in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(key, str) and not last and _is_tag(value, key):
            section = _variant(section, path[-1], key) or section
            continue
        path.append(str(key))
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, (list, tuple)) and isinstance(key, int) and key < len(value):
            value = value[key]
        if not last:
            section = _inner(section, str(key)) or section
    return path, section


def _is_tag(value: Any, key: str) -> bool:
    return isinstance(value, Mapping) and value.get("kind") == key and key not in value


def _field_types(section: type[BaseModel], key: str) -> tuple[type[BaseModel], ...]:
    for name, field in section.model_fields.items():
        if key in (name, field.alias):
            found = [field.annotation, *_all_args(field.annotation)]
            return tuple(t for t in found if isinstance(t, type) and issubclass(t, BaseModel))
    return ()


def _all_args(annotation: Any) -> list[Any]:
    inner = [argument for argument in get_args(annotation) if argument is not Ellipsis]
    return inner + [deeper for argument in inner for deeper in _all_args(argument)]


def _inner(section: type[BaseModel], key: str) -> type[BaseModel] | None:
    types = _field_types(section, key)
    return types[0] if len(types) == 1 else None


def _variant(section: type[BaseModel], key: str, tag: str) -> type[BaseModel] | None:
    for candidate in _field_types(section, key):
        if tag in get_args(candidate.model_fields["kind"].annotation):
            return candidate
    return None


def _keys(section: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in section.model_fields.items()]


def _kinds(section: type[BaseModel], key: str) -> str:
    kinds = [get_args(t.model_fields["kind"].annotation)[0] for t in _field_types(section, key)]
    return ", ".join(kinds)


def _help_text(section: type[BaseModel], key: str) -> str:
    for name, field in section.model_fields.items():
        if key in (name, field.alias) and field.description:
            return f" It is: {field.description[:1].lower()}{field.description[1:]}"
    return ""


def _plain_list(expected: str) -> list[str]:
    return [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(",")]


def _not_one_of(found: str, known: list[str]) -> str:
    guess = closest(found, known)
    hint = f" Did you mean {guess!r}?" if guess else ""
    return f"{found!r} is not one of {', '.join(known)}.{hint}"


def _shown(value: Any, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else text[: most - 1] + "…"
