"""What a row of the index is made of."""

import json
from collections.abc import Iterator
from typing import Any

Cell = str | int | float | None
Row = dict[str, Cell]
"""By column. What is absent was not measured, or is not a setting of this run."""
NO_RECORD = "no record"
"""The status of a run that still runs, or that was killed; of a trial that has not ended."""
_PLAIN = (str, int, float)


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Cell]]:
    """Nested data under dotted names; a list is one value, written as JSON."""
    if value is None or type(value) in _PLAIN:
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, bool):
        # SQLite has no such type, and 1 would equal a number.
        yield path, "true" if value else "false"
    else:
        yield path, json.dumps(value, ensure_ascii=False)
