"""The summary of a study, from its run directories alone: a table, comparisons with intervals, findings in words."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foretune.analyse.comparability import overshot_clock, too_few_steps
from foretune.analyse.convergence import Convergence, Curve, convergence, convergence_finding, curves
from foretune.analyse.ranking import FEWEST_RUNS
from foretune.analyse.study_cells import (
    BEFORE,
    COST,
    COUNTED,
    DATA_SHARE,
    HELD_OUT_LOSS,
    INFERENCE_SPEED,
    ITERATION_SPEED,
    PEAK_MEMORY,
    RUN_TIME,
    SAMPLE_RATE,
    SAMPLES_COST,
    SAMPLES_SEEN,
    START,
    STEP_TIME,
    STEPS_MADE,
    TRAINING_SPEED,
    CellAxis,
    StudyCell,
    StudyRun,
    axis_of_score,
    batch_of,
    cells_of,
    epoch_title,
    read_parts,
)
from foretune.analyse.study_comparing import ComparedCells, compare_cells, findings_of
from foretune.choices.study import Protocol
from foretune.core.errors import UserError
from foretune.core.input_files import MOST_JSON_BYTES, read_json
from foretune.core.values import Finding
from foretune.stats.settling import LEAST_GAIN

STUDY_FILE = "study.json"
FEW_SEEDS = "; nothing is claimed from fewer than "
"""In the warning about a configuration with too few seeds."""
_FORMAT_VERSION = 1
_OLD_FORMAT = "Study"
"""Of releases in which studies with a name were programs of their own."""
_DEPTH = 2
"""Folders below a given one in which a study is looked for: studies/<name>."""

_AXES: Mapping[Protocol, tuple[CellAxis, ...]] = {
    "equal-time": (
        CellAxis(HELD_OUT_LOSS, higher_is_better=False, is_answer=True),
        CellAxis(STEPS_MADE, higher_is_better=None, is_answer=False),
        CellAxis(SAMPLES_SEEN, higher_is_better=None, is_answer=False),
        CellAxis(COUNTED, higher_is_better=None, is_answer=False),
        CellAxis(BEFORE, higher_is_better=None, is_answer=False),
        CellAxis(COST, higher_is_better=None, is_answer=False),
    ),
    "equal-steps": (
        CellAxis(TRAINING_SPEED, higher_is_better=True, is_answer=True),
        CellAxis(ITERATION_SPEED, higher_is_better=None, is_answer=False),
        CellAxis(INFERENCE_SPEED, higher_is_better=True, is_answer=True),
        CellAxis(PEAK_MEMORY, higher_is_better=False, is_answer=False),
        CellAxis(HELD_OUT_LOSS, higher_is_better=False, is_answer=False),
        CellAxis(RUN_TIME, higher_is_better=None, is_answer=False),
        CellAxis(SAMPLES_COST, higher_is_better=False, is_answer=False),
    ),
    "speed": (
        CellAxis(SAMPLE_RATE, higher_is_better=True, is_answer=True),
        CellAxis(STEP_TIME, higher_is_better=None, is_answer=False),
        CellAxis(PEAK_MEMORY, higher_is_better=False, is_answer=True),
        CellAxis(DATA_SHARE, higher_is_better=None, is_answer=False),
        CellAxis(START, higher_is_better=None, is_answer=False),
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
    varied: str | None = None
    """The one key in which the configurations differ, if its values are numbers: they are drawn on a line."""

    def to_mapping(self) -> dict[str, Any]:
        """The content of study.json. Paths are relative, so that a copied study says the same."""
        return {
            "format": "ProtocolStudy",
            "format_version": _FORMAT_VERSION,
            "name": self.name,
            "protocol": self.protocol,
            "held_equal": self.held_equal,
            **({} if self.varied is None else {"varied": self.varied}),
            "axes": [asdict(axis) for axis in self.axes],
            "rows": [
                {
                    "configuration": cell.configuration,
                    "setting": cell.setting,
                    "seeds": [part.seed for part in cell.parts],
                    "runs": list(cell.run_ids),
                    "unfinished": list(cell.unfinished),
                    "values": {title: _plain_number(number) for title, number in cell.numbers.items()},
                    "notes": list(cell.notes),
                    "machine": cell.machine,
                    "num_devices": cell.num_devices,
                    "usd_per_hour": cell.usd_per_hour,
                    **({} if self.varied is None else {"at": cell.parts[0].about["changes"][self.varied]}),
                }
                for cell in self.cells
            ],
            "comparisons": [asdict(compared) for compared in self.comparisons],
            "findings": [finding.to_mapping() for finding in self.findings],
            "curves": [asdict(curve) for curve in self.curves],
            "convergence": [asdict(found) for found in self.convergences],
            "warnings": list(self.warnings),
        }


def summarise_study(
    directory: Path, *, least_gain: float = LEAST_GAIN, prices: Mapping[str, float] | None = None
) -> StudySummary:
    """Summarises every run of a study, whichever machines made them.

    `prices`: of configurations, as the study's file has them now; left out, as it had them when the runs were made.
    """
    parts = read_parts(directory)
    if prices is not None:
        parts = [part.priced(prices.get(part.about["configuration"])) for part in parts]
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
        warnings=tuple(_warnings(cells, is_speed=protocol == "speed")),
        varied=_varied(cells) if protocol == "speed" else None,
    )


@dataclass(frozen=True)
class StoredStudies:
    """The studies of some folders, summarised from their runs."""

    findings: tuple[Finding, ...] = ()
    studies: tuple[Mapping[str, Any], ...] = ()
    """Each as in its study.json; those of older releases have findings alone."""


def stored_studies(paths: Sequence[Path]) -> StoredStudies:
    """Every study among the folders, or that a folder is part of."""
    found: list[Finding] = []
    studies = []
    for directory in dict.fromkeys(study for path in paths for study in _studies(path.resolve(), _DEPTH)):
        if stored := _stored_findings(directory):
            found += stored
            continue
        try:
            summary = summarise_study(directory)
        except UserError as error:
            # The runs are in the report all the same.
            found.append(
                Finding(sentence=f"The study {directory.name} cannot be read.", evidence=(), caveat=str(error))
            )
            continue
        found += summary.findings
        studies.append(summary.to_mapping())
    return StoredStudies(tuple(found), tuple(studies))


def _studies(path: Path, depth: int) -> Iterator[Path]:
    if (path / STUDY_FILE).is_file():
        yield path
    elif depth and path.is_dir() and not (path / "experiment.yaml").is_file():
        for folder in sorted(inner for inner in path.iterdir() if inner.is_dir() and not inner.is_symlink()):
            yield from _studies(folder, depth - 1)


def _stored_findings(directory: Path) -> list[Finding]:
    """Those of an older release, whose runs do not say which part of a study they are."""
    try:
        stored = read_json(directory / STUDY_FILE, MOST_JSON_BYTES, within=directory)
        if stored["format"] == _OLD_FORMAT:
            return [Finding(sentence=f"{stored['title']}: {text}.", evidence=()) for text in stored["findings"]]
    except (OSError, ValueError, TypeError, KeyError):
        pass  # the file is derived from the runs: they are summarised instead
    return []


def _varied(cells: Sequence[StudyCell]) -> str | None:
    changes = [cell.parts[0].about.get("changes", {}) for cell in cells if cell.parts]
    keys = set(itertools.chain.from_iterable(changes))
    if len(keys) != 1 or len(changes) < len(cells):
        return None
    (key,) = keys
    values = [one.get(key) for one in changes]
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return key if is_number else None


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
    # What the training and an evaluation both measured is one thing.
    scores.pop(HELD_OUT_LOSS, None)
    if not any(cell.is_compiled for cell in cells):
        there.discard(START)
    first, *rest = _AXES[protocol]
    epochs = {part.about["epoch_samples"] for cell in cells for part in cell.parts if "epoch_samples" in part.about}
    times = [CellAxis(epoch_title(num), higher_is_better=None, is_answer=False) for num in sorted(epochs)]
    return tuple(axis for axis in (first, *scores.values(), *times, *rest) if axis.title in there)


def _held_equal(protocol: Protocol, parts: Sequence[StudyRun], cells: Sequence[StudyCell]) -> str:
    train = parts[0].run.experiment.train
    if protocol != "equal-time":
        lengths = sorted({part.run.experiment.train.steps or 0 for part in parts})
        batches = sorted(set().union(*(batch_of(cell) for cell in cells)), reverse=True)
        named = " or ".join(f"{size} in {precision}" for size, precision in batches)
        inference = f" Inference is denoising steps/s of a batch of {named}." if named else ""
        synthetic = ", on synthetic data" if any(part.run.effective.get("is_synthetic") for part in parts) else ""
        alone = f" Validation and saving are left out{synthetic}." if protocol == "speed" else ""
        return f"{' or '.join(map(str, lengths))} optimizer steps for every run.{alone}{inference}"
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


def _warnings(cells: Sequence[StudyCell], *, is_speed: bool) -> Iterator[str]:
    for cell in cells:
        place = _label(cell, cells)
        for end in cell.unfinished:
            yield f"{place}: not counted, {end}"
        if 0 < len(cell.parts) < FEWEST_RUNS:
            seeds = "one seed" if len(cell.parts) == 1 else "two seeds"
            yield f"{place}: {seeds}{FEW_SEEDS}{FEWEST_RUNS}"
        runs = [part.run for part in cell.parts]
        whys = () if is_speed else (too_few_steps(runs), overshot_clock(runs))
        yield from (f"{place}: {why}" for why in whys if why is not None)
        yield from (f"{place}: {note}" for note in cell.notes)


def _label(cell: StudyCell, cells: Sequence[StudyCell]) -> str:
    has_settings = len({other.setting for other in cells}) > 1
    return f"{cell.configuration}, {cell.setting}" if has_settings else cell.configuration


def _plain_number(number: Any) -> dict[str, Any]:
    assert math.isfinite(number.value), "numbers that are not finite are left out before"
    by_seed = {str(seed): value for seed, value in number.by_seed.items()}
    return {"value": number.value, "low": number.low, "high": number.high, "by_seed": by_seed}
