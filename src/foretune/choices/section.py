"""The one form every section of an experiment has."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Keyword-only, frozen, closed to unknown keys; the docstring under a field is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
