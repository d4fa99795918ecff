"""The matrix as a page of the documentation: written by a run of all cells, from what became of each.

FORETUNE_PROOFS=full python -m pytest -n 2 tests/matrix
"""

import os
import platform
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import pytest

from foretune.catalog import TRAINABLE
from foretune.choices.matrix import Cell, axes, refusals
from foretune.choices.objections.base import DeviceType
from tests.matrix.cells import all_cells, covering, name_of, usual_cell

PAGE = Path(__file__).parents[2] / "docs" / "matrix.md"
_LIBRARIES = ("torch", "diffusers", "transformers", "peft", "torchao", "bitsandbytes", "pytorch-optimizer")
_RAN_ON = "Executed with "
_INTRODUCTION = """# What works with what

The capability matrix: which settings work together. `foretune plan` and `foretune train` refuse other combinations by
name before anything is loaded, with the nearest one that works. Each supported pair of values was tested in at least
one cell: a model family and one value from each table below, trained on a tiny model, saved, resumed bit for bit,
exported and reloaded.

"Cells" counts the tested cells with the value; "not with" lists the values with which it is always refused.
"""
_NAMED_IN_REASONS = ("quantized denoiser", "optimizer")
"""Axes of which many values are refused in the same words."""


def page(passed: Collection[tuple[str, Cell]], ran_on: str) -> str:
    """The whole page; a cell that did not pass is named at its top."""
    cells = list(all_cells())
    failed = [name_of(*each) for each in cells if each not in passed]
    num_refused = sum(len(covering(family).unsupported) for family in TRAINABLE)
    said = f"**{len(cells) - len(failed)} of {len(cells)} cells passed, {num_refused} pairs were refused by name.**"
    parts = [_INTRODUCTION, f"{_RAN_ON}{ran_on}.\n", said + "\n"]
    parts += [f"Failed: {', '.join(failed)}.\n"] if failed else []
    for index, name in enumerate(axes()):
        parts.append("\n".join((f"## {name[0].upper()}{name[1:]}\n", *_rows_of_axis(index, passed))) + "\n")
    parts.append("\n".join(("## Why, and what to choose instead\n", *_reasons())) + "\n")
    parts.append("\n".join(("## By device\n", *_by_device())) + "\n")
    return "\n".join(parts)


def _rows_of_axis(index: int, passed: Collection[tuple[str, Cell]]) -> Iterator[str]:
    values = list(axes().values())[index]
    yield "| | cells | not with |"
    yield "|---|---:|---|"
    for value in values:
        num_by_family = Counter(family for family, cell in passed if cell[index] == value)
        refusing = [family for family in TRAINABLE if not num_by_family[family]]
        if len(refusing) == len(TRAINABLE):
            yield f"| {value} | refused | |"
            continue
        not_with = "; ".join(part for part in (*refusing, _not_with(index, value)) if part)
        yield f"| {value} | {num_by_family.total()} | {not_with} |"


def _not_with(index: int, value: str) -> str:
    """What the value is refused with, and for which families, if not for all that have both."""
    here = (index, value)
    families: dict[tuple[int, str], list[str]] = defaultdict(list)
    for family in TRAINABLE:
        for pair in covering(family).unsupported:
            if here in pair and not any(_is_always_refused(family, place) for place in pair):
                families[pair[pair[0] == here]].append(family)
    conditions = []
    for place, of in sorted(families.items()):
        both = [f for f in TRAINABLE if not (_is_always_refused(f, here) or _is_always_refused(f, place))]
        conditions.append(place[1] if of == both else f"{place[1]} ({', '.join(of)})")
    return "; ".join(conditions)


def _is_always_refused(family: str, place: tuple[int, str]) -> bool:
    index, value = place
    return all(cell[index] != value for cell in covering(family).cells)


def _reasons() -> Iterator[str]:
    """Each refusal once, with the values and families that it is about."""
    named = [value for name in _NAMED_IN_REASONS for value in list(axes()[name])[1:]]
    families: dict[str, dict[str, None]] = defaultdict(dict)
    found: dict[str, dict[str, None]] = defaultdict(dict)
    nearest: dict[str, dict[str, None]] = defaultdict(dict)
    for family in TRAINABLE:
        for pair in covering(family).unsupported:
            chosen = dict(pair)
            cell = tuple(chosen.get(index, value) for index, value in enumerate(usual_cell()))
            for objection in refusals(cell, family, "cpu"):
                why, _, instead = objection.text.partition(" Nearest: ")
                values = [value for value in chosen.values() if value in named and f" {value} " in f"{why[:-1]} "]
                for value in values:
                    why = f"{why[:-1]} ".replace(f" {value} ", " … ").rstrip() + "."
                families[why][family] = None
                found[why].update(dict.fromkeys(values))
                nearest[why][instead] = None
    yield "| refused on a CPU | … is | nearest |"
    yield "|---|---|---|"
    for why in sorted(families):
        key, _, because = why.partition(": ")
        only = "" if len(families[why]) == len(TRAINABLE) else f" ({', '.join(families[why])})"
        yield f"| `{key}`: {because}{only} | {', '.join(found[why])} | {'; '.join(nearest[why])} |"


def _by_device() -> Iterator[str]:
    """Values of which a kind of device alone decides; only those of the CPU were executed."""
    kinds: tuple[DeviceType, ...] = get_args(DeviceType)
    yield f"What depends on the device type alone. Only the CPU column was executed.\n\n| | {' | '.join(kinds)} |"
    yield f"|---|{'---|' * len(kinds)}"
    for name, values in axes().items():
        for value in values:
            by_kind = [_is_always_refused_on(name, value, kind) for kind in kinds]
            if any(by_kind):
                yield f"| {name}: {value} | {' | '.join('refused' if no else 'yes' for no in by_kind)} |"


def _is_always_refused_on(axis: str, value: str, kind: DeviceType) -> bool:
    """For every family, with all else as usual, and with what some choices need beside them."""
    usual = dict(zip(axes(), usual_cell(), strict=True))
    beside: tuple[dict[str, str], ...] = (
        {},
        {"method": "lora"},
        {"method": "lora", "checkpointing": "all blocks"},
        {"precision": "bf16"},
    )
    cells = [tuple({**usual, **needed, axis: value}.values()) for needed in beside]
    return all(refusals(cell, family, kind) for cell in cells for family in TRAINABLE)


def without_run(text: str) -> str:
    """The page but for the line that tells where it was made."""
    return "\n".join(line for line in text.splitlines() if not line.startswith(_RAN_ON))


class MatrixPage:
    """Collects what became of all cells, from this process or workers, and writes the page if none is lacking."""

    def __init__(self) -> None:
        self._names = {f"matrix-{name_of(*each)}": each for each in all_cells()}
        self._outcomes: dict[tuple[str, Cell], bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("test_a_supported_cell_runs[")[2].removesuffix("]")
        if name in self._names and (report.when == "call" or report.failed):
            cell = self._names[name]
            self._outcomes[cell] = report.passed and self._outcomes.get(cell, True)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._outcomes) < len(self._names):
            return
        libraries = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in _LIBRARIES)
        ran_on = f"Python {platform.python_version()}, {libraries} on a CPU ({platform.machine()})"
        PAGE.write_text(page({cell for cell, ok in self._outcomes.items() if ok}, ran_on), encoding="utf-8")
        terminalreporter.write_line(f"wrote {PAGE.relative_to(PAGE.parents[1])}")


def is_full_run() -> bool:
    """Whether this run executes all cells, and not in a worker, which sees some of them only."""
    return os.environ.get("FORETUNE_PROOFS") == "full" and "PYTEST_XDIST_WORKER" not in os.environ
