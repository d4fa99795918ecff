"""The one form every section of an experiment has, and which of its fields make the question."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Keyword-only, frozen, closed to unknown keys; the docstring under a field is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class _Incidental:
    """The type of the marker below."""

    def __repr__(self) -> str:
        return "INCIDENTAL"


INCIDENTAL = _Incidental()
"""Marks a field in which two runs that answer the same question may differ: where files are, how work is split.

It stands outermost: `Annotated[str | None, INCIDENTAL]`. A field without it is part of the question, so that a field
nobody thought about tells runs apart instead of mixing them.
"""


def question_in(value: Any) -> Any:
    """A section, or a field of one, as plain data without what is incidental."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        return {name: question_in(getattr(value, name)) for name, field in fields if INCIDENTAL not in field.metadata}
    if isinstance(value, tuple):
        return [question_in(item) for item in value]
    return value
