"""Runs in groups: how many ended how, and the best and the median of what was measured."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from foretune.analyse.run_index.cells import Cell
from foretune.analyse.run_index.selecting import RunTable, Selection, select_runs
from foretune.core.observer import Observer

DEFAULT_GROUPS = ("model", "method.kind", "quantize.denoiser", "train.precision", "device", "kind")
_ALWAYS_SHOWN = ("model", "method.kind")
_STATUS, _SPEED, _MEMORY, _HELD_OUT, _LOSS = "status", "samples_per_s", "memory_bytes", "held_out_loss", "last_loss"
_FIGURES = (_STATUS, _SPEED, _MEMORY, _HELD_OUT, _LOSS)


@dataclass(frozen=True)
class Spread:
    """One figure of the finished runs of a group; None where none of them has it."""

    best: float | None
    median: float | None


@dataclass(frozen=True)
class RunGroup:
    """Runs that agree in the columns they are grouped by."""

    key: tuple[Cell, ...]
    num_runs: int
    num_by_status: dict[str, int]
    speed: Spread
    """Samples per second; the best is the highest."""
    memory: Spread
    """Bytes at the peak of the device, or of the process where there is none; the best is the lowest."""
    loss: Spread
    """Held-out loss after the last step where all have one, else the loss of the last step; the best is the lowest."""
    is_held_out: bool


@dataclass(frozen=True)
class GroupedRuns:
    """All groups of a selection."""

    by: tuple[str, ...]
    common: dict[str, Cell]
    """Columns in which all runs agree, so that no group is named by them."""
    groups: tuple[RunGroup, ...]
    table: RunTable
    """Where the figures are from."""


def summarise(
    folders: Sequence[Path], selection: Selection, by: Sequence[str] | None = None, observer: Observer | None = None
) -> GroupedRuns:
    """Groups the selected runs by columns; by default by model, method and what usually sets runs apart."""
    wanted = tuple(dict.fromkeys(DEFAULT_GROUPS if by is None else by))
    table = select_runs(folders, replace(selection, columns=(*wanted, *_FIGURES), sort=None, top=None), observer)
    num_keys = len(wanted)
    values = [{row[number] for row in table.rows} for number in range(num_keys)]
    is_shown = [by is not None or name in _ALWAYS_SHOWN or len(values[n]) > 1 for n, name in enumerate(wanted)]
    shown = [number for number in range(num_keys) if is_shown[number]]
    members: dict[tuple[Cell, ...], list[tuple[Cell, ...]]] = {}
    for row in table.rows:
        members.setdefault(tuple(row[number] for number in shown), []).append(row[num_keys:])
    groups = [_group(key, rows) for key, rows in members.items()]
    return GroupedRuns(
        by=tuple(wanted[number] for number in shown),
        common={wanted[n]: next(iter(values[n])) for n in range(num_keys) if not is_shown[n] and values[n] != {None}},
        groups=tuple(sorted(groups, key=lambda group: [_order(cell) for cell in group.key])),
        table=table,
    )


def _group(key: tuple[Cell, ...], rows: Sequence[tuple[Cell, ...]]) -> RunGroup:
    finished = [row for row in rows if row[0] == "finished"]
    held_out = _numbers(finished, _HELD_OUT)
    has_held_out = bool(finished) and len(held_out) == len(finished)
    return RunGroup(
        key=key,
        num_runs=len(rows),
        num_by_status=dict(sorted(Counter(str(row[0]) for row in rows).items(), key=lambda item: (-item[1], item[0]))),
        speed=_spread(_numbers(finished, _SPEED), max),
        memory=_spread(_numbers(finished, _MEMORY), min),
        loss=_spread(held_out if has_held_out else _numbers(finished, _LOSS), min),
        is_held_out=has_held_out,
    )


def _numbers(rows: Sequence[tuple[Cell, ...]], figure: str) -> list[float]:
    position = _FIGURES.index(figure)
    return [cell for row in rows if isinstance(cell := row[position], (int, float))]


def _spread(values: Sequence[float], best: Callable[[Sequence[float]], float]) -> Spread:
    return Spread(best(values), statistics.median(values)) if values else Spread(None, None)


def _order(cell: Cell) -> tuple[int, float, str]:
    """Numbers by size, then text, then what has no value."""
    if isinstance(cell, (int, float)):
        return 0, cell, ""
    return (2, 0.0, "") if cell is None else (1, 0.0, cell)
