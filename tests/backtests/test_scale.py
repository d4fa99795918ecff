"""Published speeds on 8 to 1,024 devices: which rows are asked, and how far the forecasts are off."""

from collections import Counter
from statistics import median

import pytest

from foretune import catalog
from foretune.backtests.questions import LeftOut
from foretune.backtests.scale import (
    ScaleForecasts,
    ScaleQuestion,
    ScaleResult,
    is_of_scale,
    median_errors,
    scale_question,
    scale_results,
    submitter_of,
    where_the_count_grows,
)
from foretune.backtests.scale_programs import COMPOSER, FLUX_BENCHMARK, NEMO
from foretune.planner.timing.device_speed import speed_of
from foretune.planner.traces import Traces

ROWS = catalog.measurements()


@pytest.fixture(scope="module")
def results() -> list[ScaleResult]:
    asked = [scale_question(row) for row in ROWS.values() if is_of_scale(row)]
    return scale_results([one for one in asked if isinstance(one, ScaleQuestion)], ScaleForecasts(Traces(), speed_of))


def of(results: list[ScaleResult], *row_ids: str) -> list[ScaleResult]:
    return [one for one in results if one.asked.row_id in row_ids]


def test_every_row_is_asked_or_has_a_reason() -> None:
    rows = [row for row in ROWS.values() if is_of_scale(row)]
    assert all(row.grade == "A" and (row.num_gpus or 0) >= 8 for row in rows)
    asked = [scale_question(row) for row in rows]
    reasons = Counter(one.reason for one in asked if isinstance(one, LeftOut))
    assert reasons == {
        "products in MXFP8, which no table has": 12,
        "tensor parallelism, which is not modelled": 2,
        "another program (MaxDiffusion/Habana)": 1,
    }
    programs = Counter(one.program.name for one in asked if isinstance(one, ScaleQuestion))
    assert programs == {NEMO.name: 15, COMPOSER.name: 4, FLUX_BENCHMARK.name: 2}


def test_a_question_does_not_depend_on_the_answer() -> None:
    row = ROWS["GT0051"]
    other = scale_question(row.model_copy(update={"samples_per_s_per_gpu": 1.0}))
    usual = scale_question(row)
    assert isinstance(other, ScaleQuestion)
    assert isinstance(usual, ScaleQuestion)
    assert other.step == usual.step
    assert other.published != usual.published


def test_rows_of_one_submitter_stand_together() -> None:
    assert submitter_of(ROWS["GT0031"].source) == "Dell"
    assert submitter_of(ROWS["GT0051"].source) == submitter_of(ROWS["GT0047"].source) == "NVIDIA"
    assert submitter_of(ROWS["GT0056"].source) == submitter_of(ROWS["GT0064"].source)


def test_speeds_of_stable_diffusion(results: list[ScaleResult]) -> None:
    """Nothing was fitted to these rows: tables, data sheets, and how the programs communicate."""
    found = [one for one in results if one.asked.program is not FLUX_BENCHMARK]
    assert median_errors(found)["from_nothing"].median_abs_error <= 0.15  # type: ignore[operator]
    assert median_errors(found)["without_submitter"].median_abs_error <= 0.12  # type: ignore[operator]
    worst = max(found, key=lambda one: abs(one.from_nothing))
    # Another round's program on the same devices at the same batch is 1.7 times as fast.
    assert worst.asked.row_id == "GT0032"


def test_growing_counts_beside_constant_efficiency(results: list[ScaleResult]) -> None:
    growing = where_the_count_grows(results)
    errors = {name: one.median_abs_error for name, one in median_errors(growing).items()}
    assert len(growing) == 11
    # With the same published speeds to learn from.
    assert errors["from_fewest"] <= 0.1  # type: ignore[operator]
    assert errors["constant_efficiency"] >= 3 * errors["from_fewest"]  # type: ignore[operator]


def test_the_batch_of_each_device_and_communication_both_count(results: list[ScaleResult]) -> None:
    """Where a device has few samples left, a forecast without communication is further off."""
    small = of(results, "GT0037", "GT0045", "GT0048", "GT0051")
    assert median(abs(one.from_nothing) for one in small) < median(abs(one.without_communication) for one in small)


def test_with_constant_batches_both_are_right(results: list[ScaleResult]) -> None:
    """Composer accumulates passes of 16 samples: here constant efficiency is hard to beat."""
    composer = [one for one in where_the_count_grows(results) if one.asked.program is COMPOSER]
    for one in composer:
        assert abs(one.from_fewest or 0.0) < 0.05
        assert abs(one.constant_efficiency or 0.0) < 0.05
