"""Step times against published speeds: the real rows, and rows whose constants are known."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from foretune import catalog
from foretune.backtests.speed_fit import OURS, ROOFLINE, fit, leaving_out, ratio
from foretune.backtests.speed_scoring import SpeedScore, rank_correlation, scored, speed_score
from foretune.backtests.step_times import SpeedQuestion, SpeedResult, has_speed, speed_question
from foretune.planner.timing.constants import TimeConstants, speed_record
from foretune.planner.timing.step_time import StepParts
from foretune.planner.timing.work_times import Times
from foretune.planner.traces import Traces

PRODUCTS, HOST = 1.3, 2.0


@cache
def some_question() -> SpeedQuestion:
    rows = (speed_question(row) for row in catalog.measurements().values() if has_speed(row))
    return next(one for one in rows if isinstance(one, SpeedQuestion))


def made(model: str, device_share: float, *, published_by: float = 1.0) -> SpeedResult:
    """A row of which a share is the device's, published by the constants above and times a factor."""
    total = Times(product_s=device_share, attention_s=0.1 * device_share, num_operators=1000)
    parts = StepParts(total=total, by_part={}, operators_s=1 - device_share, bus_s=0.0, is_cpu=False)
    truth = parts.seconds(TimeConstants(products=PRODUCTS, host=HOST)).step_s
    question = some_question()
    asked = replace(question.asked, model=model, row_id=f"{model} {device_share}")
    return SpeedResult(
        question=replace(question, asked=asked, published_s=published_by * truth),
        parts=parts,
    )


def made_rows() -> list[SpeedResult]:
    return [made(model, share / 10) for model in ("a", "b", "c") for share in range(1, 10)]


def test_constants_are_found_again() -> None:
    products, host = fit(OURS, made_rows())
    assert products == pytest.approx(PRODUCTS, rel=0.03)
    assert host == pytest.approx(HOST, rel=0.03)


def test_a_row_has_no_part_in_its_own_constants() -> None:
    """Most rows are of a model that is published 1.4 times as slow as it is: its own errors show it all the same."""
    slow = [made("slow", share / 30, published_by=1.4) for share in range(2, 29)]
    rows = [*(made("a", share / 10) for share in range(1, 10)), *slow]
    found = leaving_out(OURS, rows, lambda row: row.question.asked.model)
    assert found[9:] == [pytest.approx(1 / 1.4, rel=0.05)] * len(slow)
    # Fitted to all rows, the many decide for themselves.
    own = fit(OURS, rows)
    assert [ratio(OURS, own, row) for row in slow] == [pytest.approx(1, rel=0.05)] * len(slow)


def test_ranks() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 2, 3], [1, 5, 5, 9]) == pytest.approx(1)
    assert rank_correlation([1, 2], [1, 2]) is None


def test_figures_of_no_rows_are_none() -> None:
    found = scored(()).as_dict()["speed"]
    assert found["num_rows"] == 0
    assert found["median_abs_error"] is found["rank_correlation"] is None


@pytest.fixture(scope="module")
def real() -> SpeedScore:
    return speed_score(catalog.measurements().values(), Traces())


@pytest.mark.proof
def test_step_times_of_published_rows(real: SpeedScore, report_figure: Callable[[str], None]) -> None:
    speed = real.as_dict()["speed"]
    for name, what in ((None, "model left out"), ("device_left_out", "device left out")):
        some = speed if name is None else speed[name]
        report_figure(
            f"{some['num_rows']} step times, {what}: median {some['median_abs_error']:.1%}, p90 "
            f"{some['p90_abs_error']:.1%} (roofline: {speed['baseline_median_abs_error']:.0%}, "
            f"{speed['baseline_p90_abs_error']:.0%})"
        )
    assert speed["num_rows"] >= 102
    assert speed["rank_correlation"] >= 0.95
    assert speed["median_abs_error"] <= 0.10 < speed["baseline_median_abs_error"]
    assert speed["p90_abs_error"] <= 0.32 < speed["baseline_p90_abs_error"]
    assert speed["device_left_out"]["median_abs_error"] <= 0.10
    assert speed["checkpointing_ratios"]["median_abs_error"] <= 0.08
    assert speed["quantisation_ratios"]["median_abs_error"] <= 0.15
    bound, baseline = speed["bound_by_device"], speed["baseline_bound_by_device"]
    assert bound["median_abs_error"] <= 0.12 < baseline["median_abs_error"]
    assert speed["by_base"]["int8, rotated (SDNQ)"]["num_rows"] == 24


def test_the_record_is_what_the_backtest_says(real: SpeedScore) -> None:
    record = speed_record()
    assert set(record.ratio_by_row) == {result.question.asked.row_id for result in real.results}
    for result, found in zip(real.results, real.ratios, strict=True):
        assert found == pytest.approx(record.ratio_by_row[result.question.asked.row_id], rel=1e-3)
    assert record.constants.products == pytest.approx(real.constants.products, rel=1e-3)


def test_rows_that_cannot_be_asked_have_a_reason(real: SpeedScore) -> None:
    rows = [row for row in catalog.measurements().values() if has_speed(row)]
    assert len(rows) == 172
    assert len(real.results) + len(real.left_out) == len(rows)
    assert all(row.reason for row in real.left_out)
    assert not any("shapes of products" in row.reason for row in real.left_out)


def test_the_roofline_has_constants_of_its_own(real: SpeedScore) -> None:
    """The baseline is not starved: it is fitted in the same way, with more constants."""
    assert len(ROOFLINE.start) == 6 > len(OURS.start)
    assert fit(ROOFLINE, real.results) != ROOFLINE.start
