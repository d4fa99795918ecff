"""Whether two runs were made in the same environment, and if not, in what it differed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.record.environment import VOLATILE

# Part of the fingerprint, but not of the machine: the user's own source is what is often compared, and what is volatile
# differs from itself.
_SOURCE = "source"
INCIDENTAL_PARTS = (_SOURCE, VOLATILE)
_ABSENT = "absent"


@dataclass(frozen=True)
class Difference:
    """One field that two mappings do not share."""

    field: str
    """Its path, with points: packages.torch."""
    in_a: Any
    in_b: Any

    def __str__(self) -> str:
        return f"{self.field}: {_text(self.in_a)} against {_text(self.in_b)}"


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Every field in which two mappings differ, in the order of their names."""
    flat_a, flat_b = dict(_fields(a)), dict(_fields(b))
    return tuple(
        Difference(name, flat_a.get(name, _ABSENT), flat_b.get(name, _ABSENT))
        for name in sorted(flat_a.keys() | flat_b.keys())
        if flat_a.get(name, _ABSENT) != flat_b.get(name, _ABSENT)
    )


def environment_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Difference, ...]:
    """The fields that make two environments unlike; the source revision of the user's own code is not among them."""
    return tuple(found for found in differences(a, b) if found.field.split(".")[0] not in INCIDENTAL_PARTS)


def source_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Difference, ...]:
    """How the user's own source differs, where both runs were started from a checkout."""
    return tuple(found for found in differences(a, b) if found.field.split(".")[0] == _SOURCE)


def named(found: Sequence[Difference], most: int = 4) -> str:
    """Differences in one line."""
    shown = "; ".join(map(str, found[:most]))
    return f"{shown}; and {len(found) - most} more" if len(found) > most else shown


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _fields(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and value:
        for number, inner in enumerate(value):
            yield from _fields(inner, f"{path}[{number}]")
    else:
        yield path, value


def _text(value: Any) -> str:
    return "none" if value is None else str(value)
