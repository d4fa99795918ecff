"""Two sets of runs, compared in what both of them measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from foretune.analyse.busyness import busier
from foretune.analyse.environments import Difference, differences, environment_differences, named, source_differences
from foretune.analyse.groups import settings_of
from foretune.analyse.quantities import QUANTITIES
from foretune.analyse.run_data import RunData
from foretune.analyse.seeds import decide_over_seeds
from foretune.choices.section import question_in
from foretune.core.errors import Refused
from foretune.core.values.comparison import Comparison, Interval
from foretune.stats.deciding import DECIDING_CONFIDENCE, Decision, decide
from foretune.stats.intervals import ONE_RUN, Estimate

_Of = TypeVar("_Of")
# How long something is measured, what is looked at beside it, and the seed, over which runs repeat, change no speed.
_NOT_OF_SPEED = ("train.steps", "train.epochs", "train.seconds", "train.clock", "train.seed", "validation")
_NOT_OF_A_LOSS = ("train.seed", "validation.prompts", "validation.num_inference_steps", "validation.guidance_scale")
_ONE_AFTER_THE_OTHER = (
    "one side was measured after the other, so a machine that drifts looks like a difference; "
    "foretune compare A.yaml B.yaml --run measures both in turns"
)
# The model counts by its content, and the rest is no setting of speed.
_NOT_A_SETTING = ("model", "validate", *_NOT_OF_SPEED)


class Unlike(Refused):
    """Two sets of runs that were not made to be compared."""


@dataclass(frozen=True, kw_only=True)
class Permission:
    """What may be compared although it is unlike. The answer mentions it."""

    across_environments: bool = False
    across_questions: bool = False


@dataclass(frozen=True)
class Compared:
    """One quantity: the judgement, and what it was made of."""

    comparison: Comparison
    decision: Decision
    a: Estimate
    b: Estimate


@dataclass(frozen=True)
class ComparedRuns:
    """Everything that two sets of runs can be compared in."""

    quantities: tuple[Compared, ...]
    labels: tuple[str, ...]
    """What is unlike, though it was allowed; the revision of the source."""
    left_out: tuple[str, ...]
    """Runs that do not count, and why."""
    num_unfinished_b: int = 0
    """Runs of b that did not finish."""

    def quantity(self, name: str) -> Compared | None:
        return next((one for one in self.quantities if one.comparison.quantity == name), None)


def compare(
    a: Sequence[RunData],
    b: Sequence[RunData],
    permission: Permission | None = None,
    *,
    is_paired: bool = False,
    names: tuple[str, str] = ("a", "b"),
) -> ComparedRuns:
    """How b relates to a: step time, samples a second, peak memory, losses, as far as both measured them.

    Raises `Unlike` for unlike environments or questions that nobody permitted. `is_paired` is for runs that were made
    in turns; `names` are what warnings call the sides.
    """
    left_out = tuple(text for side, runs in zip(names, (a, b), strict=True) for text in _not_finished(side, runs))
    done_a, done_b = [run for run in a if run.has_finished], [run for run in b if run.has_finished]
    if not done_a or not done_b:
        raise Unlike(
            f"There is nothing to compare: no run of {names[1] if done_a else names[0]} has finished. {left_out[0]}"
        )
    # A run that ended early may know neither its machine nor its data: what does not count is not asked for them.
    labels = _labels(done_a, done_b, permission or Permission(), names)
    paired = is_paired and not left_out
    shared = [*_order_warnings(done_a, done_b, is_paired=paired), *labels]
    if not paired:
        shared += busier([run.environment for run in done_a], [run.environment for run in done_b], names)
    is_same_task = _num_steps(done_a) == _num_steps(done_b) and not any(
        _question_differences(done_a[0], other, _NOT_OF_A_LOSS) for other in (*done_a, *done_b)
    )
    quantities = []
    for quantity in QUANTITIES:
        if not quantity.is_speed and not is_same_task:
            continue
        of_a, of_b = quantity.estimate(done_a), quantity.estimate(done_b)
        if of_a is None or of_b is None:
            continue
        if quantity.is_speed:
            decision = decision_of(of_a, of_b, names, is_paired=paired)
        else:
            decision = decide_over_seeds(_seeded(done_a, of_a), _seeded(done_b, of_b), names)
        ids = ([run.run_id for run in done_a], [run.run_id for run in done_b])
        named_as = (quantity.name, quantity.unit)
        quantities.append(compared(named_as, decision, (of_a, of_b), ids, names, shared))
    if not quantities:
        raise Unlike(f"There is nothing that both {names[0]} and {names[1]} have measured.")
    return ComparedRuns(tuple(quantities), labels, left_out, len(b) - len(done_b))


def compared(
    named_as: tuple[str, str],
    decision: Decision,
    sides: tuple[Estimate, Estimate],
    ids: tuple[Sequence[str], Sequence[str]],
    names: tuple[str, str],
    shared: Sequence[str],
) -> Compared:
    """One quantity, given its name and unit, with everything that is to be said of it: `shared` with each of them."""
    of_a, of_b = sides
    warnings = (*decision.warnings, *_unsteady(of_a, names[0]), *_unsteady(of_b, names[1]), *shared)
    comparison = Comparison(
        quantity=named_as[0],
        unit=named_as[1],
        runs_a=tuple(ids[0]),
        runs_b=tuple(ids[1]),
        ratio=decision.ratio,
        interval=_interval(decision),
        answer=decision.answer,
        warnings=tuple(dict.fromkeys(warnings)),
    )
    return Compared(comparison, decision, of_a, of_b)


def decision_of(of_a: Estimate, of_b: Estimate, names: tuple[str, str], *, is_paired: bool) -> Decision:
    """Drifting runs have no typical value, so there is no ratio of them either."""
    if of_a.value is None or of_b.value is None:
        return Decision(None, None, None, DECIDING_CONFIDENCE, "inconclusive", of_a.num_runs, of_b.num_runs, None)
    return decide(of_a.run_values, of_b.run_values, is_paired=is_paired, names=names)


def _seeded(runs: Sequence[RunData], estimate: Estimate) -> list[tuple[int, float]]:
    return [(run.experiment.train.seed, loss) for run, loss in zip(runs, estimate.run_values, strict=True)]


def _interval(decision: Decision) -> Interval | None:
    if decision.low is None or decision.high is None:
        return None
    return Interval(low=decision.low, high=decision.high, confidence=decision.confidence)


def _unsteady(estimate: Estimate, name: str) -> list[str]:
    """What the estimate warns of; the decision says where there is only one run."""
    return [f"{name}: {warning}" for warning in estimate.warnings if warning != ONE_RUN]


def _labels(
    a: Sequence[RunData], b: Sequence[RunData], permission: Permission, names: tuple[str, str]
) -> tuple[str, ...]:
    """What is unlike, in words; raises where it was not permitted."""
    labels = environment_labels([run.environment for run in a], [run.environment for run in b], permission)
    asked = first_difference(a, b, _question_differences)
    if asked:
        if not permission.across_questions:
            raise Unlike(
                f"These runs are of different experiments ({named(asked)}). To compare their speed and memory anyway, "
                "run: foretune compare A B --across-questions"
            )
        labels.append(f"across questions: {named(asked)}")
    for name, runs in zip(names, (a, b), strict=True):
        mixed = first_difference(runs, (), _setting_differences)
        if mixed:
            if not permission.across_questions:
                raise Unlike(
                    f"The runs of {name} were made with different settings ({named(mixed)}), so they have no typical "
                    "value. Name one bench or run directory for each side, or run: "
                    "foretune compare A B --across-questions"
                )
            labels.append(f"{name} mixes settings: {named(mixed)}")
    settings = _setting_differences(a[0], b[0])
    if settings:
        labels.append(f"settings: {named(settings)}")
    source = source_differences(a[0].environment, b[0].environment)
    if source:
        labels.append(f"source: {named(source)}")
    return tuple(labels)


def environment_labels(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], permission: Permission
) -> list[str]:
    """How environments are unlike, in words; raises where that was not permitted."""
    unlike = first_difference(a, b, environment_differences)
    if not unlike:
        return []
    if not permission.across_environments:
        raise Unlike(
            f"These runs were made in unlike environments ({named(unlike)}), so a difference would not be that of "
            "what was run. Measure both in one place, or add --across-environments to compare all the same."
        )
    return [f"across environments: {named(unlike)}"]


def first_difference(
    a: Sequence[_Of], b: Sequence[_Of], differ: Callable[[_Of, _Of], tuple[Difference, ...]]
) -> tuple[Difference, ...]:
    """Between the sets first, then within each: a set of unlike runs has no typical value either."""
    return next((found for other in (*b, *a) if (found := differ(a[0], other))), ())


def _question_differences(
    one: RunData, other: RunData, ignored: tuple[str, ...] = _NOT_OF_SPEED
) -> tuple[Difference, ...]:
    """What makes two runs answers to different questions: as far as speed and memory go, by default."""
    found = tuple(
        difference
        for difference in differences(question_in(one.experiment), question_in(other.experiment))
        if not difference.field.startswith(ignored)
    )
    if one.samples_per_step != other.samples_per_step:
        found += (Difference("samples in a step", one.samples_per_step, other.samples_per_step),)
    contents = ("data_fingerprint", "base_checksum")
    return found + tuple(
        Difference(name.replace("_", " "), one.effective[name], other.effective[name])
        for name in contents
        if name in one.effective and name in other.effective and one.effective[name] != other.effective[name]
    )


def _setting_differences(one: RunData, other: RunData) -> tuple[Difference, ...]:
    """Choices that leave the question as it is and may change the speed: levers, loader processes, threads, device."""
    asked = {difference.field for difference in differences(question_in(one.experiment), question_in(other.experiment))}
    return tuple(
        difference
        for difference in differences(settings_of(one), settings_of(other))
        if difference.field not in asked and not difference.field.startswith(_NOT_A_SETTING)
    )


def _num_steps(runs: Sequence[RunData]) -> set[int]:
    """A loss after other steps is another loss."""
    return {len(run.losses) for run in runs}


def _not_finished(side: str, runs: Sequence[RunData]) -> list[str]:
    ends = [run for run in runs if not run.has_finished]
    if not ends:
        return []
    return [f"{len(ends)} of {len(runs)} runs of {side} left out: not finished ({ends[0].run_id}: {ends[0].end})"]


def _order_warnings(a: Sequence[RunData], b: Sequence[RunData], *, is_paired: bool) -> list[str]:
    """A machine that slows down looks like a difference where one side was measured after the other."""
    if {run.path for run in a} & {run.path for run in b}:
        return ["the same runs are on both sides"]
    starts_a = [run.started_s for run in a if run.started_s is not None]
    starts_b = [run.started_s for run in b if run.started_s is not None]
    if is_paired or not starts_a or not starts_b:
        return []
    if max(starts_a) < min(starts_b) or max(starts_b) < min(starts_a):
        return [_ONE_AFTER_THE_OTHER]
    return []
