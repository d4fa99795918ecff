"""Everything that a report says about a set of runs, before any of it is drawn."""

import os
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from foretune.analyse.against_base import base_findings
from foretune.analyse.comparable import Comparable, comparable_groups
from foretune.analyse.evaluations import evaluation_of
from foretune.analyse.frontier import Placed, placed
from foretune.analyse.groups import Configuration, configurations, differing, distinguished, environment_key, labelled
from foretune.analyse.missing_runs import missing_findings
from foretune.analyse.money import Price, pricing
from foretune.analyse.recommending import Recommendation, has_one_price, is_time_held_equal, recommend
from foretune.analyse.run_data import RunData
from foretune.analyse.run_numbers import MEMORY, MONEY, SPEED, TIME, Evaluations, Measure, measures, quality_metrics
from foretune.analyse.single_result import with_result
from foretune.core.errors import UnknownName, UserError
from foretune.core.scores import SCORES
from foretune.core.values import Evaluation, Finding


@dataclass(frozen=True)
class Ref:
    """How a run is called on a page."""

    run: RunData
    anchor: str
    name: str
    """Its id, or so much of its path as tells it from the others."""
    path: str
    """Relative to where the report is, with slashes."""


@dataclass(frozen=True)
class RunTask:
    """Configurations of the same model, data and length, so that one can be better than another."""

    model: str
    group: Comparable
    measures: tuple[Measure, ...]
    axes: tuple[Measure, ...]
    """Those of the Pareto front: not speed where there is time, and not what was held equal."""
    placed: tuple[Placed, ...]
    recommendation: Recommendation
    has_quality: bool
    against_base: tuple[Finding, ...] = ()
    """How each configuration differs from its base in the metric that decides; empty where none was evaluated, or where
    the recommendation says it already."""
    missing: tuple[Finding, ...] = ()
    """What too few runs leave open, and what more would show; empty where each has three or more."""

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        return self.group.configurations

    @property
    def is_of_study(self) -> bool:
        """True if a study named the configurations; the machine then gets a column of its own."""
        return any(one.is_of_study for one in self.configurations)


@dataclass(frozen=True)
class RunReport:
    """The contents of a report, in the order of what was asked."""

    tasks: tuple[RunTask, ...]
    refs: dict[Path, Ref]
    """By the path of the run."""
    anchors: dict[str, str]
    """Of a configuration, by its key."""
    evaluations: dict[Path, Evaluation]
    prices: tuple[str, ...]
    """What was paid for an hour, and where that is from."""

    @property
    def configurations(self) -> list[Configuration]:
        return [one for task in self.tasks for one in task.configurations]

    @property
    def runs(self) -> list[RunData]:
        return [run for one in self.configurations for run in one.runs]

    @property
    def failed(self) -> list[RunData]:
        return [run for run in self.runs if not run.has_finished]

    @property
    def environments(self) -> dict[str, list[RunData]]:
        """Runs by the environment they were made in."""
        found: dict[str, list[RunData]] = {}
        for run in self.runs:
            found.setdefault(environment_key(run.environment), []).append(run)
        return found

    def common_settings(self) -> dict[str, object]:
        """What all configurations were asked for alike."""
        every = [one.settings for one in self.configurations]
        apart = set(differing(every))
        return {name: value for name, value in every[0].items() if name not in apart and all(name in s for s in every)}


def run_report(
    runs: Sequence[RunData], base: Path, *, usd_per_hour: float | None = None, quality: str | None = None
) -> RunReport:
    """Judges a set of runs. `base` is the folder the report will be in: paths are relative to it."""
    # By what they are, not where they lie or in which order they were named.
    refs = _refs(sorted(runs, key=lambda run: (run.started_s or 0.0, run.run_id, _relative(run.path, base))), base)
    price = pricing(usd_per_hour)
    groups = configurations([ref.run for ref in refs.values()])
    evaluations = {path: found for path in refs if (found := evaluation_of(path)) is not None}
    tasks = [_task(group, price, evaluations, quality) for group in _comparable(groups)]
    if quality is not None and not any(task.has_quality for task in tasks):
        known = dict.fromkeys(name for task in tasks for name in quality_metrics(task.configurations, evaluations))
        if not known or quality in SCORES:
            also = f" What all of them have: {', '.join(known)}." if known else ""
            raise UserError(
                f"Quality {quality}: not every run has it, measured with the same settings.{also} "
                "Run: foretune evaluate RUNS..."
            )
        raise UnknownName("metric", quality, known)
    ordered = [one for task in tasks for one in task.configurations]
    prices = dict.fromkeys(
        f"${paid.usd_per_hour:g} an hour, {paid.source}"
        for one in ordered
        for run in one.runs
        if (paid := price(run)) is not None
    )
    return RunReport(
        tasks=tuple(tasks),
        refs=refs,
        anchors={one.key: f"configuration-{number}" for number, one in enumerate(ordered, start=1)},
        evaluations=evaluations,
        prices=tuple(prices),
    )


def model_name(run: RunData) -> str:
    """A folder by its name, not by where it lies."""
    return posixpath.basename(run.experiment.model.replace("\\", "/").rstrip("/")) or run.experiment.model


def _task(
    comparable: Comparable,
    price: Callable[[RunData], Price | None],
    evaluations: Evaluations,
    quality: str | None,
) -> RunTask:
    group = comparable.configurations
    found = measures(group, price, evaluations, quality)
    if comparable.kind != "training":
        found = tuple(one for one in found if one.name in (SPEED, MEMORY))
    # Money is shown where there is a price; the front is drawn over what was measured.
    shown = tuple(one for one in found if any(one.values(c.finished) for c in group))
    able = [one for one in group if one.finished]
    axes = _axes(able, shown)
    has_quality = found[0].name not in (TIME, SPEED)
    recommendation = recommend(group, found)
    compared = recommendation.compared
    against_base = base_findings(group, evaluations, found[0].name) if has_quality else []
    if len(group) == len(able) == 1 and comparable.kind == "training":
        recommendation, against_base = with_result(group[0], recommendation, against_base), []
    return RunTask(
        model_name(group[0].runs[0]),
        comparable,
        shown,
        axes,
        tuple(placed(group, axes)),
        recommendation,
        has_quality,
        tuple(against_base),
        tuple(missing_findings(compared, found, recommendation.rankings, evaluations)) if compared else (),
    )


def _axes(able: Sequence[Configuration], shown: Sequence[Measure]) -> tuple[Measure, ...]:
    by_name = {one.name: one for one in shown}
    time_s, money = by_name.get(TIME), by_name.get(MONEY)
    left_out = {SPEED} if time_s is not None else set()
    if able and is_time_held_equal(able):
        is_money_time = time_s is not None and money is not None and has_one_price(able, time_s, money)
        left_out |= {TIME, *([MONEY] if is_money_time else [])}
    return tuple(one for one in shown if one.name not in left_out)


def _comparable(groups: Sequence[Configuration]) -> list[Comparable]:
    """Each group named by itself: what sets tasks apart is in their headings, not in these names."""
    found = comparable_groups(groups, _subject)
    models = [model_name(group.configurations[0].runs[0]) for group in found]
    unlike = [_apart(number, models, group) for number, group in enumerate(found)]
    named = distinguished([labelled(group.configurations) for group in found], unlike)
    num = sum(map(len, named))
    letters = iter(_letters(num))
    return [
        replace(group, configurations=tuple(replace(one, letter=next(letters)) for one in ones))
        for group, ones in zip(found, named, strict=True)
    ]


def _subject(one: Configuration) -> tuple[str, str, str]:
    """Model, data and size of images: beyond these, numbers answer different questions."""
    run = one.runs[0]
    data = run.effective.get("data_fingerprint") or run.experiment.data.kind
    size = run.size_text or one.settings.get("data.resolution")
    return model_name(run), str(data), str(size)


def _apart(number: int, models: Sequence[str], group: Comparable) -> str:
    """What a configuration gets after its name where another task has the same name."""
    if group.kind != "training":
        return f"{models[number]}, {group.kind}"
    if group.is_split_by_length and group.length is not None:
        return group.length
    return models[number] if models.count(models[number]) == 1 else f"{models[number]}, task {number + 1}"


def _letters(num: int) -> list[str]:
    """A, B, ..., Z, or numbers where there are more; one configuration alone needs none."""
    if num == 1:
        return [""]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return list(alphabet[:num]) if num <= len(alphabet) else [str(number + 1) for number in range(num)]


def _refs(runs: Sequence[RunData], base: Path) -> dict[Path, Ref]:
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.run_id] = counts.get(run.run_id, 0) + 1
    refs = {}
    for number, run in enumerate(runs, start=1):
        path = _relative(run.path, base)
        name = run.run_id if counts[run.run_id] == 1 else path
        refs[run.path] = Ref(run, f"run-{number}", name, path)
    return refs


def _relative(path: Path, base: Path) -> str:
    try:
        return Path(os.path.relpath(path.resolve(), base.resolve())).as_posix()
    except ValueError:
        # Another drive: there is no way from here to there.
        return path.name
