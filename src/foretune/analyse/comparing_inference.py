"""Two sets of benches of inference, compared in denoising steps, images and memory; or whatever lies at two paths."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from foretune.analyse.busyness import busier
from foretune.analyse.comparing import (
    Compared,
    ComparedRuns,
    Permission,
    Unlike,
    compare,
    compared,
    decision_of,
    environment_labels,
    first_difference,
)
from foretune.analyse.environments import differences, named
from foretune.analyse.inference_data import InferenceData, inference_in, times_of
from foretune.analyse.quantities import SPEED, STEP_TIME, one_number_each
from foretune.analyse.run_data import gather, has_runs
from foretune.stats.intervals import Estimate, Statistic, typical
from foretune.stats.speed import rate_of

_SAME = "the same benches are on both sides"
_ONE_AFTER_THE_OTHER = "one bench was made after the other, so a machine that drifts looks like a difference"
_What = Literal["denoising", "imaging"]
_Benches = Sequence[InferenceData]


def _time(benches: _Benches, what: _What, statistic: Statistic) -> Estimate | None:
    """Seconds of a denoising step of the whole batch, or of a batch of images."""
    times_s = [one for bench in benches for one in times_of(getattr(bench, what))]
    return typical(times_s, statistic=statistic) if times_s else None


def _rate(benches: _Benches, what: _What) -> Estimate | None:
    """Images that take a denoising step, or are finished, in a second: all of them over all of their time."""
    times = _time(benches, what, "mean")
    if times is None:
        return None
    size = "batch_size" if what == "denoising" else "image_batch_size"
    counts = [getattr(bench, size) * bench.num_devices for bench in benches for _ in getattr(bench, what)]
    rates = tuple(count / time_s for count, time_s in zip(counts, times.run_values, strict=True))
    value, low, high = rate_of(times, statistics.fmean(counts)) or (None, None, None)
    return replace(times, value=value, low=low, high=high, run_values=rates)


def _peak(benches: _Benches, key: str) -> Estimate | None:
    return one_number_each([repeat[key] for bench in benches for repeat in bench.denoising])


_QUANTITIES: tuple[tuple[str, str, Callable[[_Benches], Estimate | None]], ...] = (
    (STEP_TIME, "s", lambda benches: _time(benches, "denoising", "median")),
    (SPEED, "image-steps/s", lambda benches: _rate(benches, "denoising")),
    ("images end to end", "images/s", lambda benches: _rate(benches, "imaging")),
    ("peak device memory", "bytes", lambda benches: _peak(benches, "peak_device_bytes")),
    ("peak process memory", "bytes", lambda benches: _peak(benches, "peak_host_bytes")),
)


def compare_paths(
    a: Sequence[Path], b: Sequence[Path], permission: Permission | None = None, *, names: tuple[str, str] = ("a", "b")
) -> ComparedRuns:
    """What lies at the paths of two sides: trainings where there are any, else benches of inference."""
    is_training = [any(has_runs(path) for path in side) for side in (a, b)]
    benches = [[found for path in side for found in inference_in(path)] for side in (a, b)]
    if any(is_training) or not any(benches):
        for side, has_trained, found in zip((a, b), is_training, benches, strict=True):
            if found and not has_trained:
                raise Unlike(
                    f"{_listed(side)} is a bench of inference, the other side one of training: they share no quantity."
                )
        return compare(gather(a), gather(b), permission, names=names)
    for side, found in zip((a, b), benches, strict=True):
        if not found:
            raise Unlike(f"There is no bench of inference in {_listed(side)}, and the other side is one.")
    return compare_inference(benches[0], benches[1], permission, names=names)


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def compare_inference(
    a: Sequence[InferenceData],
    b: Sequence[InferenceData],
    permission: Permission | None = None,
    *,
    names: tuple[str, str] = ("a", "b"),
) -> ComparedRuns:
    """How b relates to a. Each repeat in a fresh process is one value. Raises `Unlike` as `compare` does."""
    permission = permission or Permission()
    places = [[place for bench in side for place in bench.environments] for side in (a, b)]
    labels = environment_labels(places[0], places[1], permission)
    asked = first_difference([bench.asked for bench in a], [bench.asked for bench in b], differences)
    if asked:
        if not permission.across_questions:
            raise Unlike(
                f"These benches measured different things ({named(asked)}). "
                "To compare them anyway, run: foretune compare A B --across-questions"
            )
        labels.append(f"across questions: {named(asked)}")
    quantities: list[Compared] = []
    shared = [*labels, _SAME if {one.path for one in a} & {one.path for one in b} else _ONE_AFTER_THE_OTHER]
    shared += busier(places[0], places[1], names)
    for name, unit, estimate in _QUANTITIES:
        of_a, of_b = estimate(a), estimate(b)
        if of_a is None or of_b is None:
            continue
        decision = decision_of(of_a, of_b, names, is_paired=False)
        ids = ([bench.path.name for bench in a], [bench.path.name for bench in b])
        quantities.append(compared((name, unit), decision, (of_a, of_b), ids, names, shared))
    return ComparedRuns(tuple(quantities), tuple(labels), ())
