"""The groups of checks, known without torch."""

from collections.abc import Collection
from typing import Literal, get_args

from foretune.core.errors import UnknownName

Group = Literal["training", "attention", "quantisation", "compile", "distributed", "host", "versions"]


def groups_named(names: Collection[str]) -> tuple[Group, ...]:
    """The groups of these names, all where none is named."""
    known: tuple[Group, ...] = get_args(Group)
    for name in names:
        if name not in known:
            raise UnknownName("group of checks", name, known)
    return tuple(group for group in known if not names or group in names)
