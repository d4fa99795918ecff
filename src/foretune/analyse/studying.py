"""A study's answer, from its run directories alone: a table, comparisons with intervals, and findings in words."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from foretune.analyse.comparability import overshot_clock, too_few_steps
from foretune.analyse.convergence import Convergence, Curve, convergence, convergence_finding, curves
from foretune.analyse.study_cells import (
    BEFORE,
    COUNTED,
    FEWEST_SEEDS,
    HELD_OUT_LOSS,
    INFERENCE_SPEED,
    PEAK_MEMORY,
    SAMPLES_SEEN,
    STEPS_MADE,
    TRAINING_SPEED,
    CellAxis,
    StudyCell,
    StudyRun,
    axis_of_score,
    batch_of,
    cells_of,
    read_parts,
)
from foretune.analyse.study_comparing import ComparedCells, compare_cells, findings_of
from foretune.core.errors import UserError
from foretune.core.values import Finding
from foretune.stats.settling import LEAST_GAIN

STUDY_FILE = "study.json"
_FORMAT_VERSION = 1
Protocol = Literal["equal-time", "equal-steps", "convergence"]

_AXES: Mapping[Protocol, tuple[CellAxis, ...]] = {
    "equal-time": (
        CellAxis(HELD_OUT_LOSS, higher_is_better=False, is_answer=True),
        CellAxis(STEPS_MADE, higher_is_better=None, is_answer=False),
        CellAxis(SAMPLES_SEEN, higher_is_better=None, is_answer=False),
        CellAxis(COUNTED, higher_is_better=None, is_answer=False),
        CellAxis(BEFORE, higher_is_better=None, is_answer=False),
    ),
    "equal-steps": (
        CellAxis(TRAINING_SPEED, higher_is_better=True, is_answer=True),
        CellAxis(INFERENCE_SPEED, higher_is_better=True, is_answer=True),
        CellAxis(PEAK_MEMORY, higher_is_better=False, is_answer=False),
        CellAxis(HELD_OUT_LOSS, higher_is_better=False, is_answer=False),
    ),
    "convergence": (
        CellAxis(HELD_OUT_LOSS, higher_is_better=False, is_answer=False),
        CellAxis(STEPS_MADE, higher_is_better=None, is_answer=False),
    ),
}


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """All that a study says: what is printed, drawn and written to study.json."""

    name: str
    protocol: Protocol
    held_equal: str
    """What was the same for all, and what the clock counted, in words."""
    axes: tuple[CellAxis, ...]
    cells: tuple[StudyCell, ...]
    comparisons: tuple[ComparedCells, ...]
    findings: tuple[Finding, ...]
    curves: tuple[Curve, ...] = ()
    convergences: tuple[Convergence, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """The content of study.json. Paths are relative, so that a copied study says the same."""
        return {
            "format": "ProtocolStudy",
            "format_version": _FORMAT_VERSION,
            "name": self.name,
            "protocol": self.protocol,
            "held_equal": self.held_equal,
            "axes": [asdict(axis) for axis in self.axes],
            "rows": [
                {
                    "configuration": cell.configuration,
                    "setting": cell.setting,
                    "seeds": [part.seed for part in cell.parts],
                    "runs": list(cell.run_ids),
                    "unfinished": list(cell.unfinished),
                    "values": {title: _told(number) for title, number in cell.numbers.items()},
                    "notes": list(cell.notes),
                }
                for cell in self.cells
            ],
            "comparisons": [asdict(compared) for compared in self.comparisons],
            "findings": [finding.to_mapping() for finding in self.findings],
            "curves": [asdict(curve) for curve in self.curves],
            "convergence": [asdict(found) for found in self.convergences],
            "warnings": list(self.warnings),
        }


def summarise_study(directory: Path, *, least_gain: float = LEAST_GAIN) -> StudySummary:
    """Reads every run of a study and says what they say together, whichever machines made them."""
    parts = read_parts(directory)
    name, protocol = _one_study(parts, directory)
    cells = cells_of(parts)
    axes = _axes(protocol, cells)
    compared = compare_cells(axes, cells)
    lines: tuple[Curve, ...] = ()
    settled: tuple[Convergence, ...] = ()
    findings = list(findings_of(protocol, axes, cells, compared))
    if protocol == "convergence":
        groups = {_label(cell, cells): [part.run for part in cell.parts] for cell in cells if cell.parts}
        lines = curves(groups)
        settled = tuple(convergence(label, runs, least=least_gain) for label, runs in groups.items())
        findings += [convergence_finding(found, least=least_gain) for found in settled]
    return StudySummary(
        name=name,
        protocol=protocol,
        held_equal=_held_equal(protocol, parts, cells),
        axes=axes,
        cells=cells,
        comparisons=compared,
        findings=tuple(findings),
        curves=lines,
        convergences=settled,
        warnings=tuple(_warnings(cells)),
    )


def _one_study(parts: Sequence[StudyRun], directory: Path) -> tuple[str, Protocol]:
    found = {(part.about["name"], part.about["protocol"]) for part in parts}
    if len(found) > 1:
        named = ", ".join(sorted(name for name, _ in found))
        raise UserError(f"{directory} holds parts of {len(found)} studies ({named}). Name the folder of one of them.")
    ((name, protocol),) = found
    if protocol not in _AXES:
        raise UserError(f"{directory} was made by a protocol that this release does not know: {protocol}")
    return name, protocol


def _axes(protocol: Protocol, cells: Sequence[StudyCell]) -> tuple[CellAxis, ...]:
    """Those that at least one cell has a number on; behind the loss, metrics that can be better or worse."""
    there = set(itertools.chain.from_iterable(cell.numbers for cell in cells))
    scores = {
        axis.title: axis
        for cell in cells
        for part in cell.parts
        for score in (part.evaluation.scores if part.evaluation is not None else ())
        if (axis := axis_of_score(score)).title in there and axis.is_answer
    }
    if protocol != "equal-time":
        scores = {}
    first, *rest = _AXES[protocol]
    return tuple(axis for axis in (first, *scores.values(), *rest) if axis.title in there)


def _held_equal(protocol: Protocol, parts: Sequence[StudyRun], cells: Sequence[StudyCell]) -> str:
    train = parts[0].run.experiment.train
    if protocol != "equal-time":
        lengths = sorted({part.run.experiment.train.steps or 0 for part in parts})
        batches = sorted(set().union(*(batch_of(cell) for cell in cells)), reverse=True)
        named = " or ".join(f"{size} in {precision}" for size, precision in batches)
        inference = f" Inference is denoising steps/s of a batch of {named}." if named else ""
        return f"{' or '.join(map(str, lengths))} optimizer steps for every run.{inference}"
    before = [cell.numbers[BEFORE].value for cell in cells if BEFORE in cell.numbers]
    took = f" ({min(before):.1f} to {max(before):.1f} s on average)" if before else ""
    words = {
        "steps": "Counted is the time inside optimizer steps, waiting for data included; not validation and saving",
        "run": "Counted is everything from the first step on, validation and saving included; not the last of them",
    }
    return (
        f"{train.seconds:g} s of training for every run. {words[train.clock]}, and not what came before the first "
        f"step: starting, loading, encoding{took}. Where something is compiled, the first steps do it and are counted."
    )


def _warnings(cells: Sequence[StudyCell]) -> Iterator[str]:
    for cell in cells:
        place = _label(cell, cells)
        for end in cell.unfinished:
            yield f"{place}: not counted, {end}"
        if 0 < len(cell.parts) < FEWEST_SEEDS:
            seeds = "one seed" if len(cell.parts) == 1 else "two seeds"
            yield f"{place}: {seeds}: not a claim; {FEWEST_SEEDS} are the fewest"
        runs = [part.run for part in cell.parts]
        yield from (f"{place}: {why}" for why in (too_few_steps(runs), overshot_clock(runs)) if why is not None)
        yield from (f"{place}: {note}" for note in cell.notes)


def _label(cell: StudyCell, cells: Sequence[StudyCell]) -> str:
    has_settings = len({other.setting for other in cells}) > 1
    return f"{cell.configuration}, {cell.setting}" if has_settings else cell.configuration


def _told(number: Any) -> dict[str, Any]:
    assert math.isfinite(number.value), "numbers that are not finite are left out before"
    by_seed = {str(seed): value for seed, value in number.by_seed.items()}
    return {"value": number.value, "low": number.low, "high": number.high, "by_seed": by_seed}
