"""How long the demonstration trains, and with how many seeds: decided by what this machine makes of the first round."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from foretune.config.study_files import StudyAsked, load_study, read_study
from foretune.core.observer import Observer
from foretune.core.units import duration_text
from foretune.executors.executor import Executor
from foretune.record.run_directory import RunDirectory
from foretune.stats.enough_steps import fewest_steps
from foretune.studies.demo.preparing import STUDY, write_demo_study
from foretune.studies.study_file import Forecast, PartDone, run_study_file

BUSY_SECONDS = 20.0
"""Length of each training on a busy machine: with a busy process on each core, the study's own seconds are too few for
the fewest steps about every second time, and training all of them again takes longer."""
MOST_SECONDS = 60.0
"""Upper limit of each training, where the study's own seconds are not enough for the fewest steps."""
WHOLE_S = 180.0
"""Time within which the whole demonstration should end; seeds beyond the first are run where they fit into it."""
_SPARE = 1.3
"""A second try is given so much more time than the first one's speed asks for: a busy machine may become busier."""


@dataclass(frozen=True)
class DemoRun:
    """What was run."""

    folder: Path
    """Of the study that counts: its runs are below it."""
    file: Path
    done: tuple[PartDone, ...]


@dataclass(frozen=True)
class _Lacking:
    label: str
    made: int
    needed: int
    needed_s: float
    """Seconds in which the fewest steps would have been made at the speed of those that were."""


def run_demo(
    folder: Path,
    observer: Observer,
    forecast: Forecast | None,
    executor: Executor,
    *,
    begin_s: float,
    is_busy: bool = False,
    now: Callable[[], float] = time.monotonic,
) -> DemoRun:
    """Every configuration once; longer where that made too few steps; then two more seeds where they fit.

    Args:
        folder: where everything is written.
        observer: receives progress.
        forecast: expected memory of a run, to be stored with it.
        executor: runs the trainings.
        begin_s: when the demonstration began, by `now`.
        is_busy: whether other processes use the machine.
        now: the clock.
    """
    file, left_out = write_demo_study(folder, seconds=_first_seconds(folder, is_busy=is_busy))
    for text in left_out:
        observer.warning(f"Left out: {text}")
    asked = read_study(file)
    round_s, done = _first_round(asked, folder, executor, observer, forecast, now)
    seconds = asked.file.seconds
    assert seconds is not None, "the demonstration gives each training the same time"
    lacking = _lacking(done)
    longer_s = _longer(seconds, lacking)
    if longer_s > seconds:
        named = ", ".join(f"{one.label} made {one.made} of {one.needed}" for one in lacking)
        observer.warning(
            f"Not enough steps on this machine in {seconds:g} s: {named}. Training each again for {longer_s:g} s "
            f"(at most {MOST_SECONDS:g} s)."
        )
        file, _ = write_demo_study(folder, seconds=longer_s, is_second_try=True)
        asked = read_study(file)
        round_s, done = _first_round(asked, folder, executor, observer, forecast, now)
        lacking = _lacking(done)
    if lacking:
        named = ", ".join(f"{one.label} made {one.made} of {one.needed}" for one in lacking)
        observer.warning(f"Not enough steps on this machine: {named}. Nothing is called better or worse.")
        return DemoRun(folder / asked.name, file, done)
    rest = tuple(part for part in asked.parts if part.seed != asked.file.seeds[0])
    rest_s = round_s * (len(asked.file.seeds) - 1)
    if now() - begin_s + rest_s <= WHOLE_S:
        done += run_study_file(replace(asked, parts=rest), folder, executor, observer, forecast)
    elif rest:
        observer.message(
            f"One run each: {len(rest)} runs with other seeds would take {duration_text(rest_s)} more here. "
            f"To run them: foretune study {file} --studies {folder}"
        )
    return DemoRun(folder / asked.name, file, done)


def _first_seconds(folder: Path, *, is_busy: bool) -> float | None:
    """How long each training takes at first: as long as those of an earlier demonstration in this folder."""
    earlier = folder / STUDY.name
    if earlier.is_file():
        return load_study(earlier).seconds
    return BUSY_SECONDS if is_busy else None


def _first_round(
    asked: StudyAsked,
    folder: Path,
    executor: Executor,
    observer: Observer,
    forecast: Forecast | None,
    now: Callable[[], float],
) -> tuple[float, tuple[PartDone, ...]]:
    """The first seed of every configuration, and the seconds that took."""
    begin_s = now()
    parts = tuple(part for part in asked.parts if part.seed == asked.file.seeds[0])
    done = run_study_file(replace(asked, parts=parts), folder, executor, observer, forecast)
    return now() - begin_s, done


def _lacking(done: tuple[PartDone, ...]) -> list[_Lacking]:
    """Finished trainings with fewer steps than a comparison needs."""
    found = []
    for one in done:
        record = None if one.run is None or one.problem is not None else RunDirectory.open(one.run).read_record()
        if record is None:
            continue
        needed = fewest_steps(one.part.asked.experiment.optimizer.warmup_steps)
        made, counted_s = record.outcome.steps_done, record.measured.counted_s or 0.0
        if made < needed:
            found.append(_Lacking(one.part.configuration, made, needed, counted_s / max(made, 1) * needed))
    return found


def _longer(seconds: float, lacking: list[_Lacking]) -> float:
    """Seconds of training for all, so that the slowest makes its fewest steps; never more than the limit."""
    return max(seconds, min(MOST_SECONDS, math.ceil(_SPARE * max((one.needed_s for one in lacking), default=0.0))))
