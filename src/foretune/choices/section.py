"""The one form every section of an experiment has, and which of its fields make the question."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Keyword-only, frozen, closed to unknown keys; the docstring under a field is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class _Mark:
    """The type of the markers below."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


INCIDENTAL = _Mark("INCIDENTAL")
"""Marks a field in which two runs that answer the same question may differ: where files are, how work is split.

It stands outermost: `Annotated[str | None, INCIDENTAL]`. A field without it is part of the question, so that a field
nobody thought about tells runs apart instead of mixing them.
"""


LATER = _Mark("LATER")
"""Marks a field that a later version of the format brought. Where it has its default it is left out of both hashes, so
that experiments which were asked before it was there keep theirs. It stands outermost, too.
"""


FORMS_STEP = _Mark("FORMS_STEP")
"""Marks a field that changes which operators a training step runs, or what it allocates: steps that differ in it do not
share a trace (`choices/step_form.py`). It stands outermost, too.
"""


def question_in(value: Any) -> Any:
    """A section, or a field of one, as plain data without what is incidental."""
    if isinstance(value, BaseModel):
        return {
            name: question_in(getattr(value, name))
            for name, field in type(value).model_fields.items()
            if INCIDENTAL not in field.metadata and not is_later_default(value, name)
        }
    if isinstance(value, tuple):
        return [question_in(item) for item in value]
    return value


def is_later_default(section: BaseModel, name: str) -> bool:
    """Whether a field came later and says nothing that experiments before it did not say."""
    field = type(section).model_fields[name]
    return LATER in field.metadata and getattr(section, name) == field.get_default()
