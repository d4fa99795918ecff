"""Every key of an experiment file as Markdown, made from the choices themselves so that it cannot fall behind."""

import json
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from foretune.choices.experiment import Experiment

_NAMES: dict[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "null",
}


def experiment_reference() -> str:
    """A table for each section, in the order of the file."""
    lines = ["| key | what it is |", "|---|---|"]
    sections: list[tuple[str, type[BaseModel]]] = []
    for name, field in Experiment.model_fields.items():
        key = field.alias or name
        found = list(_sections(field.annotation))
        lines.append(f"| `{key}` | {_meaning(field)} |")
        sections += [(_title(key, section, len(found)), section) for section in found]
    for title, section in sections:
        lines += ["", f"## {title}", "", (section.__doc__ or "").strip(), *_table(section)]
    return "\n".join(lines) + "\n"


def _title(key: str, section: type[BaseModel], num_kinds: int) -> str:
    kind = section.model_fields.get("kind")
    named = f": `kind: {get_args(kind.annotation)[0]}`" if kind is not None and num_kinds > 1 else ""
    return f"`{key}`{named}"


def _table(section: type[BaseModel]) -> list[str]:
    rows = [
        f"| `{name}` | {_type_text(field.annotation)} | {_default(field)} | {_meaning(field)} |"
        for name, field in section.model_fields.items()
        if name != "kind"
    ]
    return ["", "| key | value | default | meaning |", "|---|---|---|---|", *rows] if rows else []


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


def _type_text(annotation: Any) -> str:
    if annotation in _NAMES:
        return _NAMES[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_text(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{argument}`" for argument in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(argument) for argument in arguments)
    if origin is tuple:
        inner = [argument for argument in arguments if argument is not Ellipsis]
        return f"list of {_type_text(inner[0])}" if Ellipsis in arguments else f"list of {len(inner)} numbers"
    assert issubclass(annotation, BaseModel), f"no words for {annotation}"
    keys = ", ".join(f"`{name}`" for name in annotation.model_fields)
    return f"a section with {keys}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined, "a field is required or has a default"
    return "–" if value is None else f"`{json.dumps(value)}`"


def _meaning(field: FieldInfo) -> str:
    return (field.description or "").replace("\n", " ").replace("|", "\\|")
