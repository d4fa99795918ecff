"""Data sets on the Hub by short names, and the settings that read them once they are downloaded."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from foretune.catalog.rows import DATA_DIR, NAME_PATTERN, Row, doubles, raise_all, read_json, validated

Text = Annotated[str, Field(min_length=1)]


class Dataset(Row):
    """One repository of the type `dataset`."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    hub_repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    about: Text
    data: Mapping[str, Any]
    """Settings of the section `data` beside `path`."""
    source: Text


def read_datasets(path: Path) -> Mapping[str, Dataset]:
    """Every data set of a file by name; raises `CatalogError`."""
    rows, problems = validated(Dataset, read_json(path, "rows"), label="name")
    raise_all(path, [*problems, *doubles(rows, lambda row: row.name)])
    return MappingProxyType({row.name: row for row in rows})


@cache
def datasets() -> Mapping[str, Dataset]:
    """Data sets by name."""
    return read_datasets(DATA_DIR / "datasets.json")
