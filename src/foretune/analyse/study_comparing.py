"""Configurations of a study held against the first one, seed by seed, and what that says in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from foretune.analyse.comparability import why_not_compared
from foretune.analyse.ranking import FEWEST_RUNS
from foretune.analyse.study_cells import (
    HELD_OUT_LOSS,
    INFERENCE_SPEED,
    PEAK_MEMORY,
    SAMPLE_RATE,
    SAMPLES_COST,
    STEPS_MADE,
    TRAINING_SPEED,
    CellAxis,
    Number,
    StudyCell,
    batch_of,
)
from foretune.core.units import measured_text
from foretune.core.values import Finding
from foretune.stats.bounded import bounded_difference
from foretune.stats.break_even import BreakEven, break_even
from foretune.stats.deciding import SMALLEST_DIFFERENCE, decide

BREAK_EVEN, NOT_COMPARED = "; break-even: ", " are not compared: "
"""In the sentences of findings that no comparison of two configurations says."""
_CONFIDENCE = 0.95
_SMALLEST_SHARE = 0.05
"""Of the first one's quality: "no difference shown" is said where a difference of this size would have been."""
_SPEEDS = (TRAINING_SPEED, INFERENCE_SPEED, STEPS_MADE, SAMPLE_RATE)
_SHOWN_BY_FEW_STEPS = (TRAINING_SPEED, INFERENCE_SPEED, PEAK_MEMORY, SAMPLE_RATE, SAMPLES_COST)
"""What does not depend on how far a run has trained."""
Answer = Literal["better", "worse", "no difference shown", "inconclusive", "not a claim"]


@dataclass(frozen=True, kw_only=True)
class ComparedCells:
    """One configuration beside the first one, in one setting and one thing that was measured."""

    setting: str
    title: str
    """Of the axis."""
    first: str
    other: str
    kind: Literal["ratio", "difference"]
    """Speeds are compared as a ratio (other / first), qualities as a difference (other - first)."""
    value: float
    low: float | None
    high: float | None
    confidence: float
    """Of this interval, which is wider where more is compared: configurations, settings, qualities."""
    num_pairs: int
    """Seeds that both have."""
    answer: Answer


def compare_cells(axes: Sequence[CellAxis], cells: Sequence[StudyCell]) -> tuple[ComparedCells, ...]:
    """Each configuration against the first one in the same setting, in everything that can be better or worse."""
    found = []
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    num_qualities = sum(axis.higher_is_better is not None and axis.title not in _SPEEDS for axis in axes)
    for setting in settings:
        first, *others = [cell for cell in cells if cell.setting == setting]
        for axis in axes:
            if axis.higher_is_better is None and axis.title != STEPS_MADE:
                continue
            for other in others:
                if axis.title == INFERENCE_SPEED and batch_of(first) != batch_of(other):
                    continue  # another batch is another question
                if axis.title not in _SHOWN_BY_FEW_STEPS and _why_not(first, other) is not None:
                    continue  # said once for the pair, among the findings
                # One of many differences that are not there would look like one.
                num_questions = len(others) * len(settings) * (1 if axis.title in _SPEEDS else num_qualities)
                compared = _compared(axis, first, other, confidence=1 - (1 - _CONFIDENCE) / num_questions)
                if compared is not None:
                    found.append(compared)
    return tuple(found)


def _compared(axis: CellAxis, first: StudyCell, other: StudyCell, *, confidence: float) -> ComparedCells | None:
    numbers = first.numbers.get(axis.title), other.numbers.get(axis.title)
    if numbers[0] is None or numbers[1] is None:
        return None
    seeds = sorted(numbers[0].by_seed.keys() & numbers[1].by_seed.keys())
    if not seeds:
        return None
    a, b = ([number.by_seed[seed] for seed in seeds] for number in numbers if number is not None)
    if axis.title in _SPEEDS:
        decided = decide(a, b, is_paired=True, confidence=confidence)
        if decided.ratio is None:
            return None
        value, low, high, neutral = decided.ratio, decided.low, decided.high, 1.0
        edges = (1 / (1 + SMALLEST_DIFFERENCE), 1 + SMALLEST_DIFFERENCE)
        if len(seeds) < FEWEST_RUNS:
            low = high = None
    else:
        differences = [y - x for x, y in zip(a, b, strict=True)]
        value, low, high, neutral = sum(differences) / len(differences), None, None, 0.0
        most = _SMALLEST_SHARE * abs(sum(a) / len(a))
        edges = (-most, most)
        if len(differences) >= FEWEST_RUNS:
            sides = zip((a, b), (number for number in numbers if number is not None), strict=True)
            shares = [
                (sum(values) / len(values), sum(number.outcomes_by_seed[seed] for seed in seeds))
                for values, number in sides
                if any(number.outcomes_by_seed.values())
            ]
            value, low, high = bounded_difference(differences, confidence, numbers[0].bounds, shares=shares)
    return ComparedCells(
        setting=first.setting,
        title=axis.title,
        first=first.configuration,
        other=other.configuration,
        kind="ratio" if axis.title in _SPEEDS else "difference",
        value=value,
        low=low,
        high=high,
        confidence=confidence,
        num_pairs=len(seeds),
        answer=answer_of(low, high, neutral, edges, len(seeds), higher_is_better=axis.higher_is_better is not False),
    )


def answer_of(
    low: float | None,
    high: float | None,
    neutral: float,
    edges: tuple[float, float],
    num_pairs: int,
    *,
    higher_is_better: bool,
) -> Answer:
    """What an interval shows. `edges`: differences between these are too small to matter."""
    if num_pairs < FEWEST_RUNS or low is None or high is None:
        return "not a claim"
    if low > neutral:
        return "better" if higher_is_better else "worse"
    if high < neutral:
        return "worse" if higher_is_better else "better"
    return "no difference shown" if edges[0] <= low and high <= edges[1] else "inconclusive"


def findings_of(
    protocol: str, axes: Sequence[CellAxis], cells: Sequence[StudyCell], compared: Sequence[ComparedCells]
) -> Iterator[Finding]:
    """What the protocol asked, answered for each setting; then what stands beside it."""
    answers = {axis.title for axis in axes if axis.is_answer}
    if protocol == "equal-time":
        answers |= {STEPS_MADE}
    for one in compared:
        if one.title in answers:
            yield _finding(one, cells)
    if protocol == "speed":
        yield from _break_evens(cells)
    if not answers <= set(_SHOWN_BY_FEW_STEPS):
        yield from _not_compared(cells)


def _not_compared(cells: Sequence[StudyCell]) -> Iterator[Finding]:
    """One sentence for each pair whose quality cannot be compared."""
    for setting in dict.fromkeys(cell.setting for cell in cells):
        done = [cell for cell in cells if cell.setting == setting and cell.parts]
        for first, other in ((done[0], other) for other in done[1:]):
            why = _why_not(first, other)
            if why is not None:
                yield Finding(
                    sentence=f"{_place(setting, cells)}{other.configuration} and {first.configuration}"
                    f"{NOT_COMPARED}{why}.",
                    evidence=(*first.run_ids, *other.run_ids),
                )


def _break_evens(cells: Sequence[StudyCell]) -> Iterator[Finding]:
    """Where the first configuration of a setting runs eagerly: from which step on each compiled one has paid off."""
    for setting in dict.fromkeys(cell.setting for cell in cells):
        done = [cell for cell in cells if cell.setting == setting and cell.parts]
        for first, other in ((done[0], other) for other in done[1:] if other.is_compiled and not done[0].is_compiled):
            found = break_even(first.step_times_s, other.step_times_s)
            yield Finding(
                sentence=f"{_place(setting, cells)}{break_even_sentence(other.configuration, found, 'steps')}",
                evidence=(*first.run_ids, *other.run_ids),
            )


def break_even_sentence(name: str, found: BreakEven, unit: str) -> str:
    """What compiling takes at the start, and after how many steps it has paid."""
    high = "no upper limit" if found.high is None else f"{found.high:,}"
    when = found.why if found.step is None else f"after {found.step:,} {unit} ({found.low or 1:,} to {high})"
    if found.step is None and (found.low or 0) > 1:
        when = f"not before {found.low:,} {unit}; {when}"
    return f"{name} compiles for {found.start_s:.1f} s at the start{BREAK_EVEN}{when}."


def _why_not(first: StudyCell, other: StudyCell) -> str | None:
    """Why the quality of two configurations is not compared, with the name of the one that is the reason."""
    for cell in (first, other):
        why = why_not_compared([part.run for part in cell.parts])
        if why is not None:
            return f"{cell.configuration}: {why}"
    return None


def _place(setting: str, cells: Sequence[StudyCell]) -> str:
    return f"{setting}: " if len({cell.setting for cell in cells}) > 1 else ""


def _finding(one: ComparedCells, cells: Sequence[StudyCell]) -> Finding:
    first, other = (
        next(cell for cell in cells if (cell.configuration, cell.setting) == (name, one.setting))
        for name in (one.first, one.other)
    )
    pairs = "1 seed" if one.num_pairs == 1 else f"{one.num_pairs} seeds"
    caveat = f"Not a claim: it takes {FEWEST_RUNS} seeds." if one.answer == "not a claim" else None
    sentence = _in_words(one, first.numbers[one.title], other.numbers[one.title], first)
    return Finding(
        sentence=f"{_place(one.setting, cells)}{sentence}, {pairs}.",
        evidence=(*first.run_ids, *other.run_ids),
        caveat=caveat,
    )


def _in_words(one: ComparedCells, first: Number, other: Number, cell: StudyCell) -> str:
    if one.kind == "ratio":
        verb, what = {
            TRAINING_SPEED: ("trains", "fast"),
            INFERENCE_SPEED: (f"denoises{_batch_words(cell)}", "fast"),
            STEPS_MADE: ("made", "many steps"),
            SAMPLE_RATE: ("trains", "many samples/s"),
        }[one.title]
        ratio, _, interval = measured_text(one.value, one.low, one.high, "").partition(" (")
        said = f"{one.other} {verb} {ratio} times as {what} as {one.first}{f' ({interval}' if interval else ''}"
        return {"no difference shown": f"no difference shown: {said}", "inconclusive": f"not decided: {said}"}.get(
            one.answer, said
        )
    if one.title == PEAK_MEMORY:
        return _memory_in_words(one, first, other)
    name = "a held-out loss" if one.title == HELD_OUT_LOSS else one.title
    values = (
        f"{one.other} reaches {name} of {measured_text(other.value, other.low, other.high, '')}, {one.first} "
        f"{measured_text(first.value, first.low, first.high, '')}"
    )
    difference = measured_text(abs(one.value), *_absolute(one), "")
    answers = {
        "better": f"{one.other} is better by {difference}",
        "worse": f"{one.other} is worse by {difference}",
        "no difference shown": f"no difference shown ({measured_text(one.value, one.low, one.high, '')})",
        "inconclusive": f"not decided ({measured_text(one.value, one.low, one.high, '')})",
    }
    return (
        f"{values}: {answers.get(one.answer, f'a difference of {measured_text(one.value, one.low, one.high, str())}')}"
    )


def _memory_in_words(one: ComparedCells, first: Number, other: Number) -> str:
    values = (
        f"{one.other} needs {measured_text(other.value, other.low, other.high, 'MiB')} at its peak, {one.first} "
        f"{measured_text(first.value, first.low, first.high, 'MiB')}"
    )
    if one.answer in ("better", "worse"):
        return (
            f"{values}: {measured_text(abs(one.value), *_absolute(one), 'MiB')} {'less' if one.value < 0 else 'more'}"
        )
    doubts = {"no difference shown": "no difference shown: ", "inconclusive": "not decided: "}
    return f"{doubts.get(one.answer, '')}{values}"


def _absolute(one: ComparedCells) -> tuple[float | None, float | None]:
    """The interval of the difference's size; only asked where it is on one side of zero."""
    if one.low is None or one.high is None:
        return None, None
    low, high = sorted((abs(one.low), abs(one.high)))
    return low, high


def _batch_words(cell: StudyCell) -> str:
    found = sorted(batch_of(cell))
    return f" a batch of {found[0][0]} in {found[0][1]}" if len(found) == 1 else ""
