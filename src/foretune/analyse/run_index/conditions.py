"""What `--where` says: a column, a comparison and a value, such as `train.batch_size>=4`."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from foretune.analyse.run_index.cells import Cell
from foretune.analyse.run_index.columns import PATH, STARTED
from foretune.core.errors import UserError
from foretune.core.units import bytes_of_text, seconds_of_text

_FORM = re.compile(r"\s*(?P<column>[^=<>!~]+?)\s*(?P<operator>>=|<=|!=|==|=|>|<|~)\s*(?P<value>.*?)\s*", re.DOTALL)
_ABSENT = "none"
_EXAMPLES = "status=finished, 'train.batch_size>=4', 'model=*-dev', method.rank=8,16"


@dataclass(frozen=True)
class Condition:
    """One comparison; several of them must all hold."""

    column: str
    operator: str
    """=, !=, <, <=, >, >=, or ~ for "contains"."""
    values: tuple[str, ...]
    """As written. Several stand for any of them."""

    def sql(self, quoted: Callable[[str], str]) -> tuple[str, list[Cell]]:
        """The comparison with a mark for each value, and the values. `quoted` names a column for SQL."""
        name = "folder" if self.column == PATH else quoted(self.column)
        if self.operator in ("=", "!="):
            parts = [_equal(name, self.column, value) for value in self.values]
            text = " OR ".join(part for part, _ in parts)
            values = [value for _, found in parts for value in found]
            # What has no such setting has not this value of it.
            return (f"({text})" if self.operator == "=" else f"NOT coalesce(({text}), 0)"), values
        (value,) = self.values
        if self.operator == "~":
            return f"instr(lower({name}), lower(?)) > 0", [value]
        if self.column == STARTED:
            return f"{name} {self.operator} ?", [value]
        number = _number(self.column, value)
        assert number is not None, "checked when it was read"
        # For SQLite every text is larger than every number, and a loss can be the text "NaN".
        return f"(typeof({name}) IN ('integer', 'real') AND {name} {self.operator} ?)", [number]


def condition_of(text: str) -> Condition:
    """Reads one condition. Raises a `UserError` that shows how one is written."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise UserError(f"{text!r} is not a condition. Examples: {_EXAMPLES}")
    column, operator, value = match["column"], match["operator"].replace("==", "="), match["value"]
    if not value:
        raise UserError(f"{text!r} compares with nothing. For runs without a value, write: {column}={_ABSENT}")
    if operator in ("=", "!="):
        return Condition(column, operator, tuple(part.strip() for part in value.split(",") if part.strip()) or (value,))
    if operator != "~" and column != STARTED and _number(column, value) is None:
        raise UserError(
            f"{text!r} compares numbers, and {value!r} is none. "
            "Numbers can have a unit: 'memory_bytes<=20GiB', 'wall_s>2h'"
        )
    return Condition(column, operator, (value,))


def _equal(name: str, column: str, value: str) -> tuple[str, list[Cell]]:
    if value.lower() == _ABSENT:
        # "none" is also how some settings say that there is nothing, such as quantize.denoiser.
        return f"({name} IS NULL OR {name} = ? COLLATE NOCASE)", [value]
    if "*" in value:
        pattern = re.sub(r"([\\%_])", r"\\\1", value).replace("*", "%")
        return f"{name} LIKE ? ESCAPE '\\'", [pattern]
    number = _number(column, value)
    if number is None:
        return f"{name} = ? COLLATE NOCASE", [value]
    return f"({name} = ? OR {name} = ? COLLATE NOCASE)", [number, value]


def _number(column: str, text: str) -> int | float | None:
    """A number as one types it, with a unit where the column has one."""
    plain = text.replace("_", "") if re.fullmatch(r"[\d_]+", text) else text
    try:
        return int(plain) if re.fullmatch(r"[+-]?\d{1,18}", plain) else _finite(plain)
    except ValueError:
        pass
    if column.endswith("_bytes"):
        size = bytes_of_text(text)
        return None if size is None else size[0]
    return seconds_of_text(text) if column.endswith("_s") and not column.endswith("per_s") else None


def _finite(text: str) -> float:
    number = float(text)
    if not abs(number) < float("inf"):
        raise ValueError(text)
    return number
