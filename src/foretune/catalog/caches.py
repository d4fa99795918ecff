"""The last level of cache of a device: tensors that fit into it are not read from memory."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from foretune.catalog.devices import Text
from foretune.catalog.kernel_tables import KERNELS_DIR
from foretune.catalog.rows import Row, doubles, raise_all, read_csv, validated


class LastLevelCache(Row):
    """One device's."""

    device: Text
    """Name in the catalogue."""
    last_level_mb: Annotated[float, Field(gt=0, le=4096)]
    source: Text


@cache
def last_level_caches() -> Mapping[str, LastLevelCache]:
    """Those that are known, by device."""
    path = KERNELS_DIR / "caches.csv"
    raw_rows, malformed = read_csv(path)
    rows, problems = validated(LastLevelCache, raw_rows, label="device")
    raise_all(path, [*malformed, *problems, *doubles(rows, lambda row: row.device)])
    return MappingProxyType({row.device: row for row in rows})


def last_level_bytes(device: str) -> float:
    """Zero where it is not known: then everything is read from memory."""
    row = last_level_caches().get(device)
    return 0.0 if row is None else row.last_level_mb * 1e6
