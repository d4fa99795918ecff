"""Where in an experiment something stands: its path in the file, and the section and field it belongs to."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from foretune.choices.earlier_keys import RENAMED_KEYS
from foretune.choices.experiment import Experiment


@dataclass(frozen=True)
class KeyPlace:
    """The place of one value."""

    path: tuple[str, ...]
    """Keys from the top, as they stand in the file."""
    section: type[BaseModel]
    """The section that holds the last key."""
    siblings: tuple[type[BaseModel], ...] = ()
    """The section's other kinds, where it has kinds."""
    field: FieldInfo | None = None
    """The last key's field, for an entry of a list the list's; None where the key is not known."""
    root: type[BaseModel] = Experiment
    """What the file is."""

    @property
    def key(self) -> str:
        return self.path[-1]

    def __str__(self) -> str:
        return ".".join(self.path) or ("experiment" if self.root is Experiment else "the file")


def find_place(location: tuple[int | str, ...], root: type[BaseModel] = Experiment) -> KeyPlace:
    """The place of a location in a validation error.

    A location inside a section with kinds also names the kind ("data", "folder", "path"); the file does not.
    """
    path: list[str] = []
    section = root
    siblings: tuple[type[BaseModel], ...] = ()
    field: FieldInfo | None = None
    inside: tuple[type[BaseModel], ...] = ()
    for key in location:
        if len(inside) > 1:
            section, siblings = _one_of_kind(inside, str(key))
            inside = ()
            continue
        if isinstance(key, str):
            if inside:
                section, siblings = inside[0], ()
            field = fields_by_key(section).get(key)
            inside = sections_in(field.annotation) if field is not None else ()
        path.append(str(key))
    return KeyPlace(tuple(path), section, siblings, field, root)


def fields_by_key(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """A section's fields by the names that files use."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def sections_in(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The sections that a field's value is or holds: one, or one for each kind."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(section for argument in get_args(annotation) for section in sections_in(argument))


def kind_of(section: type[BaseModel]) -> str:
    """The word that chooses this section among its siblings."""
    kind: str = get_args(section.model_fields["kind"].annotation)[0]
    return kind


def places_of_key(key: str, root: type[BaseModel] = Experiment) -> Iterator[str]:
    """Every path below a section of the file at which a key of this name is known."""
    for name, field in fields_by_key(root).items():
        if any(key in fields_by_key(section) for section in sections_in(field.annotation)):
            yield f"{name}.{key}"
    if root is Experiment:
        yield from (current for old, current in RENAMED_KEYS.items() if old.endswith(f".{key}"))


def _one_of_kind(kinds: tuple[type[BaseModel], ...], kind: str) -> tuple[type[BaseModel], tuple[type[BaseModel], ...]]:
    chosen = next(section for section in kinds if kind_of(section) == kind)
    return chosen, tuple(section for section in kinds if section is not chosen)
