"""Whether runs have trained far enough, and for the time they were given, to be called better or worse."""

from collections.abc import Sequence

from foretune.analyse.run_data import RunData
from foretune.stats.enough_steps import fewest_steps, has_overshot


def too_few_steps(runs: Sequence[RunData]) -> str | None:
    """Of the run that lacks the most: "not enough steps on this machine: 1 of 50". None where all have enough.

    Benches and profiles are compared by speed and memory alone, which a few steps show.
    """
    trained = [run for run in runs if run.kind == "training"]
    lacking = [(made, needed) for run in trained if (made := run.steps_done) < (needed := steps_needed(run))]
    if not lacking:
        return None
    made, needed = min(lacking, key=lambda one: one[0] / one[1])
    # Where time decided the number of steps, a faster machine makes more of them.
    place = " on this machine" if all(run.experiment.train.seconds is not None for run in trained) else ""
    return f"not enough steps{place}: {made} of {needed}"


def steps_needed(run: RunData) -> int:
    return fewest_steps(run.experiment.optimizer.warmup_steps)


def overshot_clock(runs: Sequence[RunData]) -> str | None:
    """Of the run that went furthest beyond its time: "14.0 s where 1 s was given". None where all kept to it."""
    beyond = []
    for run in runs:
        limit_s = run.experiment.train.seconds
        counted_s = None if run.record is None else run.record.measured.counted_s
        if limit_s is not None and counted_s is not None and has_overshot(counted_s, limit_s):
            beyond.append((counted_s, limit_s))
    if not beyond:
        return None
    counted_s, limit_s = max(beyond, key=lambda one: one[0] / one[1])
    return f"not the same time: {counted_s:.1f} s where {limit_s:g} s was given"


def why_not_compared(runs: Sequence[RunData]) -> str | None:
    """Why the quality of these runs is not compared with that of others; None where it can be."""
    return too_few_steps(runs) or overshot_clock(runs)
