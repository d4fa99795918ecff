"""What decides the columns of a row: a release that knows more settings makes other rows of the same files."""

from collections.abc import Iterator
from functools import cache
from types import NoneType
from typing import get_args

from pydantic import BaseModel

from foretune.choices.experiment import Experiment
from foretune.config.places import fields_by_key, sections_in
from foretune.core.values import Evaluation, RunRecord
from foretune.core.values.base import content_hash

ROW_VERSION = 2
"""Raised when a row gets another column, or one with another meaning."""


@cache
def row_format() -> int:
    """Differs between releases that make different rows: an index of another number is made again."""
    values = [value.format_version() for value in (Experiment, RunRecord, Evaluation)]
    # SQLite keeps 31 bits of it.
    return int(content_hash([ROW_VERSION, values, sorted(setting_keys())])[:7], 16)


@cache
def setting_keys() -> frozenset[str]:
    """The dotted keys of an experiment, of all kinds of its sections."""
    return frozenset(_keys(Experiment, ""))


def _keys(section: type[BaseModel], before: str) -> Iterator[str]:
    for name, field in fields_by_key(section).items():
        inner = sections_in(field.annotation)
        for one in inner:
            yield from _keys(one, f"{before}{name}.")
        # A section that can be left out is a value itself where it is: train.ema=none.
        if not inner or NoneType in get_args(field.annotation):
            yield f"{before}{name}"
