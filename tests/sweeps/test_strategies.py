"""Strategies: which combinations they try, given what came of those before."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from foretune.choices.sweep import AxisOption, axis_options
from foretune.executors.outcome import OutcomeKind
from foretune.sweeps.strategies.drawn import Drawn
from foretune.sweeps.strategies.frontier import FrontierSearch, bisection_probes, size_of
from foretune.sweeps.strategies.grid import GridSearch
from foretune.sweeps.strategies.guided import Guided
from foretune.sweeps.strategies.seam import MemoryExcess, Point, PointResult, SearchSpace, Strategy

BATCH = "train.batch_size"


def space(
    estimate: Callable[[Point], MemoryExcess | None] = lambda _: None,
    is_excluded: Callable[[Point], bool] = lambda _: False,
    **axes: Sequence[object],
) -> SearchSpace:
    options = {f"train.{axis}": axis_options(f"train.{axis}", list(values)) for axis, values in axes.items()}
    return SearchSpace(options, is_excluded, estimate)


def one_free() -> int:
    return 1


def labels(point: Point) -> dict[str, str]:
    return {axis: option.label for axis, option in point.items()}


def done(point: Point, kind: OutcomeKind = "done", **scores: float) -> PointResult:
    return PointResult(labels(point), kind, scores)  # type: ignore[arg-type]


def carried_out(strategy: Strategy, outcome: Callable[[Point], PointResult], most: int = 1000) -> list[PointResult]:
    """Every result, in the order in which a controller with one slot would have them."""
    results: list[PointResult] = []
    while proposed := strategy.propose(tuple(results), one_free):
        results += [outcome(point) for point in proposed]
        assert len(results) <= most
    return results


def test_a_grid_is_every_combination_that_is_not_excluded() -> None:
    found = GridSearch(space(batch_size=[1, 2], precision=["fp32", "bf16"], is_excluded=lambda p: p[BATCH].value == 2))
    assert [labels(point)["train.precision"] for point in found.propose((), one_free)] == ["fp32", "bf16"]
    assert found.propose((), one_free) == []


@pytest.mark.parametrize("num_values", [10, 400])
def test_random_draws_are_distinct_and_repeat_with_their_seed(num_values: int) -> None:
    def drawn(seed: int) -> list[tuple[str, ...]]:
        values = list(range(1, num_values + 1))
        points = Drawn(space(batch_size=values, warmup_steps=values), 50, seed).propose((), one_free)
        return [tuple(labels(point).values()) for point in points]

    assert len(set(drawn(3))) == 50
    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_random_draws_leave_out_what_is_excluded_and_end_with_the_last() -> None:
    everything = space(batch_size=[1, 2, 3, 4], is_excluded=lambda point: point[BATCH].value == 3)
    assert sorted(labels(point)[BATCH] for point in Drawn(everything, 10, 0).propose((), one_free)) == ["1", "2", "4"]


def fits_up_to(most: int) -> Callable[[Point], PointResult]:
    return lambda point: done(point, "done" if point[BATCH].value <= most else "out of host memory")


def sizes(results: Sequence[PointResult]) -> list[int]:
    return [int(result.labels[BATCH]) for result in results]


@pytest.mark.parametrize("num_values", [1, 2, 7, 64])
def test_a_frontier_without_forecast_is_a_bisection_and_exact(num_values: int) -> None:
    for most in range(num_values + 1):
        search = FrontierSearch(space(batch_size=range(1, num_values + 1)), BATCH, uses_forecast=True)
        results = carried_out(search, fits_up_to(most))
        assert sizes(results) == [number + 1 for number in bisection_probes(num_values, most)]
        tried = {size: result.kind for size, result in zip(sizes(results), results, strict=True)}
        assert most == 0 or tried[most] == "done"
        assert most == num_values or tried[most + 1] == "out of host memory"


@pytest.mark.parametrize("error", [0, 1, -1, 3, -5, 40, -40])
def test_a_frontier_is_exact_however_wrong_the_forecast_is(error: int) -> None:
    def estimate(point: Point) -> MemoryExcess:
        needs = (point[BATCH].value - 20 - error) * 2.0**20
        return MemoryExcess(needs - 2**21, needs)

    search = FrontierSearch(space(estimate, batch_size=range(1, 65)), BATCH, uses_forecast=True)
    results = carried_out(search, fits_up_to(20))
    tried = {size: result.kind for size, result in zip(sizes(results), results, strict=True)}
    assert (tried[20], tried[21]) == ("done", "out of host memory")
    if error in (0, 1):
        assert len(results) <= 3 <= len(bisection_probes(64, 20)) / 2
    larger = [int(labels(point)[BATCH]) for point in search.predicted(results)]
    assert all(size > 21 for size in larger), "the next size up was run"
    if error == 0:
        assert larger == [32, 24], "of what a bisection would have run, what the forecast excludes with margin"


def test_a_frontier_is_searched_for_each_combination_of_the_other_axes() -> None:
    search = FrontierSearch(space(precision=["fp32", "bf16"], batch_size=[8, 1, 2, 4]), BATCH, uses_forecast=False)

    def outcome(point: Point) -> PointResult:
        most = 2 if point["train.precision"].label == "fp32" else 4
        return done(point, "done" if point[BATCH].value <= most else "out of device memory")

    results = carried_out(search, outcome)
    frontiers = [(points[found.fits or 0], found) for points, found in search.frontiers(results)]
    assert [(labels(point)["train.precision"], point[BATCH].label) for point, _ in frontiers] == [
        ("fp32", "2"),
        ("bf16", "4"),
    ]


def test_a_frontier_ends_where_a_trial_fails_for_another_reason_than_memory() -> None:
    search = FrontierSearch(space(batch_size=range(1, 65)), BATCH, uses_forecast=False)
    results = carried_out(search, lambda point: done(point, "crashed"))
    assert len(results) == 1


def test_sizes_are_numbers_or_products() -> None:
    assert size_of("416x240") == size_of("416,240") == 416 * 240
    assert size_of("8") == 8


def speed_of(point: Point) -> float:
    batch, workers = point[BATCH].value, point["train.warmup_steps"].value
    return float(100 - (batch - 37) ** 2 / 10 - abs(workers - 5))


def guided(path: Path, known: Sequence[PointResult] = (), trials: int = 20, **more: object) -> Guided:
    axes = {"batch_size": range(1, 65), "warmup_steps": range(8)}
    objectives = more.get("objectives", ("speed",))
    return Guided(space(**axes), trials, objectives, 0, known, path / "journal")  # type: ignore[arg-type]


def test_a_guided_search_does_better_than_a_random_one_of_the_same_length(tmp_path: Path) -> None:
    results = carried_out(guided(tmp_path), lambda point: done(point, speed=speed_of(point)))
    assert len({tuple(result.labels.values()) for result in results}) == 20
    best = max(result.scores["speed"] or 0 for result in results)
    points = [
        {BATCH: AxisOption(str(b), {}, b), "train.warmup_steps": AxisOption(str(w), {}, w)}
        for b in range(1, 65)
        for w in range(8)
    ]
    draws = random.Random(0)
    randoms = [max(speed_of(point) for point in draws.sample(points, 20)) for _ in range(200)]
    assert best > sorted(randoms)[100], "better than half of 200 random searches"


def test_a_guided_search_goes_on_from_what_was_run_before(tmp_path: Path) -> None:
    results = carried_out(guided(tmp_path), lambda point: done(point, speed=speed_of(point)))
    again = guided(tmp_path, results[:14])
    repeated = again.propose((), one_free)
    assert [labels(point) for point in repeated] == [result.labels for result in results[:14]]
    later = carried_out(again, lambda point: done(point, speed=speed_of(point)))
    assert len(later) == 6
    assert not {tuple(r.labels.values()) for r in later} & {tuple(r.labels.values()) for r in results[:14]}


def test_a_guided_search_survives_failures_and_exhausts_a_small_space(tmp_path: Path) -> None:
    search = Guided(space(batch_size=[1, 2, 3, 4]), 10, ("speed", "memory"), 0, (), tmp_path / "journal")
    results = carried_out(
        search, lambda p: done(p, "crashed") if p[BATCH].value == 2 else done(p, speed=1.0, memory=2.0)
    )
    assert sorted(sizes(results)) == [1, 2, 3, 4]
