"""Licences of models on the Hub, as their pages name them, and which of them must be accepted before a download."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import Field, model_validator

from foretune.catalog.rows import DATA_DIR, Row, doubles, raise_all, read_json, validated

Text = Annotated[str, Field(min_length=1)]


class Licence(Row):
    """Of one repository."""

    hub_repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    licence: Text | None
    """As in `license` of a model card; where that is `other`, its `license_name`."""
    link: Text | None
    """Its text, where the card gives an address for a licence that has no identifier of its own."""
    is_gated: bool | None
    """Whether it must be accepted on the model's page; None where no source was read."""
    source: Text

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.licence is None and self.is_gated is None:
            raise ValueError("neither the licence nor the gate is known")
        return self


def read_licences(path: Path) -> Mapping[str, Licence]:
    """Every licence of a file by repository; raises `CatalogError`."""
    rows, problems = validated(Licence, read_json(path, "rows"), label="hub_repo")
    raise_all(path, [*problems, *doubles(rows, lambda row: row.hub_repo)])
    return MappingProxyType({row.hub_repo: row for row in rows})


@cache
def licences() -> Mapping[str, Licence]:
    """Licences by repository; not every catalogued model has one."""
    return read_licences(DATA_DIR / "licences.json")
