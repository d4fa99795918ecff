"""Every key of an experiment file as Markdown, generated from the choices so that it is never out of date."""

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from foretune.choices.experiment import Experiment

_NAMES: dict[object, str] = {
    str: "string",
    int: "int",
    float: "float",
    bool: "bool",
}


def reference_pages() -> dict[str, str]:
    """The generated Markdown pages by file name: `index.md`, then one page per section of the file."""
    return {"index.md": _overview(linked=True), **{f"{key}.md": _page(key) for key in section_keys()}}


def experiment_reference() -> str:
    """All pages as one document."""
    return "\n".join([_overview(linked=False), *(_page(key) for key in section_keys())])


def section_keys() -> list[str]:
    """The keys of an experiment file that hold a section, in the order of the file."""
    return [key for key, field in _top_level().items() if _kinds(field)]


def _top_level() -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in Experiment.model_fields.items()}


def _kinds(field: FieldInfo) -> list[type[BaseModel]]:
    return list(_sections(field.annotation))


def _overview(*, linked: bool) -> str:
    sections, single = [], {}
    for key, field in _top_level().items():
        if _kinds(field):
            name = f"[`{key}`]({key}.md)" if linked else f"`{key}`"
            sections.append(f"| {name} | {_meaning(field)} |")
        else:
            single[key] = field
    return _text(
        "# All keys of an experiment file",
        "A key that is left out has its default.",
        "## Sections",
        ["| section | what it sets |", "|---|---|", *sections],
        "## Keys outside of sections",
        _table(single),
    )


def _page(key: str) -> str:
    field = _top_level()[key]
    kinds = _kinds(field)
    parts = _one_kind(kinds[0]) if len(kinds) == 1 else _several_kinds(field, kinds)
    nested = [part for kind in kinds for part in _nested(key, kind)]
    return _text(f"# `{key}`", *parts, *nested)


def _one_kind(section: type[BaseModel]) -> list[str | list[str]]:
    return [_doc(section), _table(section.model_fields)]


def _several_kinds(field: FieldInfo, kinds: Sequence[type[BaseModel]]) -> list[str | list[str]]:
    """The kinds, then the keys: those that kinds have from a common base class once, then each kind's own."""
    default = None if field.is_required() else field.get_default(call_default_factory=True).kind
    listed = [f"| `{_kind(kind)}`{' (default)' if _kind(kind) == default else ''} | {_doc(kind)} |" for kind in kinds]
    parts: list[str | list[str]] = [_meaning(field), ["| `kind` | what it is |", "|---|---|", *listed]]
    for owner, keys in _by_owner(kinds).items():
        having = [_kind(kind) for kind in kinds if issubclass(kind, owner)]
        named = "every kind" if len(having) == len(kinds) else ", ".join(f"`{name}`" for name in having)
        parts += [f"## Keys of {named}", _table(keys)]
    return parts


def _by_owner(kinds: Sequence[type[BaseModel]]) -> dict[type[BaseModel], dict[str, FieldInfo]]:
    """The keys by the class that first declares them, base classes before the classes that extend them."""
    owners: dict[type[BaseModel], dict[str, FieldInfo]] = {}
    for kind in kinds:
        for name, field in kind.model_fields.items():
            owner = next(base for base in reversed(kind.__mro__) if name in getattr(base, "model_fields", {}))
            if name != "kind":
                owners.setdefault(owner, {})[name] = field
    return owners


def _nested(key: str, section: type[BaseModel]) -> Iterator[str | list[str]]:
    for name, field in section.model_fields.items():
        for inner in _sections(field.annotation):
            yield f"## `{key}.{name}`"
            yield _doc(inner)
            yield _table(inner.model_fields)


def _kind(section: type[BaseModel]) -> str:
    return str(get_args(section.model_fields["kind"].annotation)[0])


def _doc(section: type[BaseModel]) -> str:
    return " ".join((section.__doc__ or "").split())


def _table(fields: Mapping[str, FieldInfo]) -> list[str]:
    rows = [
        f"| `{name}` | {_meaning(field)} | {_type_text(field.annotation)} | {_default(field)} |"
        for name, field in fields.items()
    ]
    return ["| key | meaning | value | default |", "|---|---|---|---|", *rows]


def _text(*parts: str | list[str]) -> str:
    """Paragraphs and tables with an empty line between them."""
    return "\n\n".join(part if isinstance(part, str) else "\n".join(part) for part in parts) + "\n"


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
        text = " or ".join(_type_text(argument) for argument in arguments if argument is not type(None))
        return f"{text}, optional" if type(None) in arguments else text
    if origin is tuple:
        inner = [argument for argument in arguments if argument is not Ellipsis]
        return f"list of {_plural(inner[0])}" if Ellipsis in arguments else f"list of {len(inner)} {_plural(inner[0])}"
    assert issubclass(annotation, BaseModel), f"no words for {annotation}"
    keys = ", ".join(f"`{name}`" for name in annotation.model_fields)
    return f"section with {keys}"


def _plural(annotation: Any) -> str:
    """The values of a list: "strings", "sections with ...", or the names that it may hold."""
    text = _type_text(annotation)
    return f"{text}s" if text in _NAMES.values() else text.replace("section with", "sections with", 1)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined, "a field is required or has a default"
    if value is None:
        return "–"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _meaning(field: FieldInfo) -> str:
    return (field.description or "").replace("\n", " ").replace("|", "\\|")
