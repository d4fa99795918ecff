"""Answers that a sweep's trials give together: the best batch, scaling, what compiling costs, loss curves."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from foretune.analyse.convergence import Convergence, Curve, convergence, convergence_finding, curves
from foretune.analyse.ranking import FEWEST_RUNS
from foretune.analyse.run_data import RunData, read_run
from foretune.analyse.study_comparing import break_even_sentence
from foretune.choices.sweep import SweepFile
from foretune.config.sweep_files import axis_word
from foretune.core.units import duration_text
from foretune.core.values import Finding
from foretune.stats.break_even import BreakEven, break_even
from foretune.stats.deciding import decide
from foretune.sweeps.trial_results import TrialResult
from foretune.sweeps.trial_scores import by_point

_MOST_CURVES = 12
"""Combinations whose losses are drawn; more cannot be distinguished."""
_CONFIDENCE = 0.95
_BATCH, _DEVICES, _COMPILE = "train.batch_size", "parallel.devices", "levers.compile"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One speed over another one."""

    value: float
    low: float | None
    """Of the 95 % interval; None with fewer than three seeds."""
    high: float | None


@dataclass(frozen=True, kw_only=True)
class BestBatch:
    """The smallest batch of each device beside the fastest one, with the other axes fixed."""

    fixed: str
    """The other axes; empty where there are none."""
    smallest: int
    smallest_samples_per_s: float
    """Of one device."""
    best: int
    best_samples_per_s: float
    """Of one device."""
    gain: Ratio
    """Best over smallest."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A number of devices beside the smallest one, with the other axes fixed."""

    fixed: str
    num_devices: int
    samples_per_s: float
    """Of all devices."""
    efficiency: Ratio
    """Speed of one device over that with the fewest devices."""


@dataclass(frozen=True, kw_only=True)
class CompileCost:
    """A compiled combination beside the same one uncompiled."""

    name: str
    plain: str
    start_s: float
    """Seconds of compiling: what its first steps take more than those of the other one."""
    pays_after_steps: int | None
    """None where compiling never pays, or where that was not shown."""
    low: int | None
    high: int | None
    why: str
    num_steps: int
    """Of a trial."""
    compiled_s: float
    """Time of a trial's steps, mean over seeds."""
    plain_s: float


def best_batches(results: Sequence[TrialResult]) -> tuple[BestBatch, ...]:
    """Compares batch sizes. Empty where fewer than two of them have finished."""
    found = []
    for fixed, by_size in _along(results, _BATCH, lambda result: result.numbers.samples_per_s_per_device):
        smallest = min(by_size)
        best = max(by_size, key=lambda size: statistics.fmean(by_size[size].values()))
        found.append(
            BestBatch(
                fixed=fixed,
                smallest=smallest,
                smallest_samples_per_s=statistics.fmean(by_size[smallest].values()),
                best=best,
                best_samples_per_s=statistics.fmean(by_size[best].values()),
                # The best of several sizes would look better than it is.
                gain=_ratio(by_size[smallest], by_size[best], 1 - (1 - _CONFIDENCE) / (len(by_size) - 1)),
            )
        )
    return tuple(found)


def scalings(results: Sequence[TrialResult]) -> tuple[Scaling, ...]:
    """Compares numbers of devices. Empty where fewer than two of them have finished."""
    return tuple(
        Scaling(
            fixed=fixed,
            num_devices=number,
            samples_per_s=number * statistics.fmean(by_number[number].values()),
            efficiency=_ratio(by_number[min(by_number)], by_number[number], _CONFIDENCE),
        )
        for fixed, by_number in _along(results, _DEVICES, lambda result: result.numbers.samples_per_s_per_device)
        for number in sorted(by_number)
    )


def _along(
    results: Sequence[TrialResult], axis: str, value_of: Callable[[TrialResult], float | None]
) -> Iterator[tuple[str, dict[int, dict[int, float]]]]:
    """For each combination of the other axes: the values by number on the axis and seed, at least two numbers."""
    groups: dict[str, dict[int, dict[int, float]]] = {}
    for result in results:
        value = value_of(result)
        if result.is_done and value is not None and result.labels.get(axis, "").isdigit():
            fixed = name_of({key: label for key, label in result.labels.items() if key != axis})
            groups.setdefault(fixed, {}).setdefault(int(result.labels[axis]), {})[result.seed] = value
    yield from ((fixed, numbers) for fixed, numbers in groups.items() if len(numbers) > 1)


def _ratio(first: Mapping[int, float], other: Mapping[int, float], confidence: float) -> Ratio:
    value = statistics.fmean(other.values()) / statistics.fmean(first.values())
    seeds = sorted(first.keys() & other.keys())
    if first is other or len(seeds) < FEWEST_RUNS:
        return Ratio(value=value, low=None, high=None)
    values = ([side[seed] for seed in seeds] for side in (first, other))
    decided = decide(*values, is_paired=True, confidence=confidence)
    return Ratio(value=value if decided.ratio is None else decided.ratio, low=decided.low, high=decided.high)


def name_of(labels: Mapping[str, str]) -> str:
    """A combination in words: `batch_size 4, precision bf16`."""
    return ", ".join(f"{axis_word(axis)} {label}" for axis, label in labels.items())


@dataclass(frozen=True, kw_only=True)
class TrialRuns:
    """The finished runs of a combination."""

    name: str
    compile: str
    """levers.compile of its experiment."""
    others: str
    """What else the combination changes."""
    runs: tuple[RunData, ...]


def runs_of(file: SweepFile, results: Sequence[TrialResult]) -> list[TrialRuns]:
    """Reads the finished runs by combination. Empty where no statement rests on single steps."""
    found: list[TrialRuns] = []
    if file.measure == "speed" and not any(_COMPILE in result.changes for result in results):
        return found
    for trials in by_point(results).values():
        if all(trial.is_done and trial.run is not None for trial in trials):
            runs = tuple(read_run(trial.run) for trial in trials if trial.run is not None)
            changes = {key: value for key, value in trials[0].changes.items() if key != _COMPILE}
            found.append(
                TrialRuns(
                    name=name_of(trials[0].labels),
                    compile=runs[0].experiment.levers.compile,
                    others=repr(sorted(changes.items())),
                    runs=runs,
                )
            )
    return found


def compile_costs(combinations: Sequence[TrialRuns]) -> Iterator[tuple[CompileCost, Finding]]:
    """Compares each compiled combination with the one that differs in nothing else."""
    plain = {one.others: one for one in combinations if one.compile == "off"}
    for one in combinations:
        first = plain.get(one.others)
        if one.compile == "off" or first is None:
            continue
        found = break_even([run.step_times_s for run in first.runs], [run.step_times_s for run in one.runs])
        plain_s, compiled_s = (statistics.fmean(sum(run.step_times_s) for run in side.runs) for side in (first, one))
        cost = CompileCost(
            name=one.name,
            plain=first.name,
            start_s=found.start_s,
            pays_after_steps=found.step,
            low=found.low,
            high=found.high,
            why=found.why,
            num_steps=min(len(run.step_times_s) for run in one.runs),
            compiled_s=compiled_s,
            plain_s=plain_s,
        )
        evidence = tuple(run.run_id for run in (*first.runs, *one.runs))
        yield cost, Finding(sentence=_cost_sentence(cost, found), evidence=evidence)


def _cost_sentence(cost: CompileCost, found: BreakEven) -> str:
    spent = f"The {cost.num_steps} steps of a trial take {duration_text(cost.compiled_s)} with it, and"
    said = break_even_sentence(cost.name, found, "steps")
    return f"{said} {spent} {duration_text(cost.plain_s)} with {cost.plain}."


def loss_curves(
    file: SweepFile, combinations: Sequence[TrialRuns]
) -> tuple[tuple[Curve, ...], tuple[Convergence, ...], list[Finding]]:
    """Loss curves of a sweep that trains. Of more than a dozen combinations, those with the lowest loss."""
    if file.measure != "train":
        return (), (), []
    drawn = sorted(combinations, key=_last_loss)[:_MOST_CURVES]
    groups = {one.name: one.runs for one in combinations if one in drawn}
    settled = tuple(convergence(name, runs) for name, runs in groups.items())
    findings = [convergence_finding(one) for one in settled if one.last is not None]
    if too_short := [one for one in settled if one.last is None]:
        names = "; ".join(one.label for one in too_short)
        evidence = tuple(run_id for one in too_short for run_id in one.run_ids)
        sentence = f"Too few values of the loss to say whether it still falls: {names}."
        findings.append(Finding(sentence=sentence, evidence=evidence))
    return curves(groups), settled, findings


def _last_loss(one: TrialRuns) -> float:
    held_out = [run.held_out_losses[-1][1] for run in one.runs if run.held_out_losses]
    training = [run.losses[-1] for run in one.runs if run.losses]
    return statistics.fmean(held_out or training or [float("inf")])
