"""Each figure of a series is drawn from the numbers that its file holds: what was measured beside what is forecast."""

import csv
from pathlib import Path
from typing import Any

import pytest

from foretune.choices.study_series import SeriesFigure
from foretune.reports.series_figures import write_figure
from foretune.reports.series_numbers import PartResults, best_batch_table, panels_of

AXIS = "samples/s"


def number(value: float) -> dict[str, Any]:
    return {"value": value, "low": value * 0.9, "high": value * 1.1, "by_seed": {"0": value}}


def measured(rates: dict[tuple[str, str], float], sizes: dict[str, int] | None = None) -> dict[str, Any]:
    rows = [
        {"configuration": name, "setting": setting, "values": {AXIS: number(rate)}}
        | ({} if sizes is None else {"at": sizes[name]})
        for (name, setting), rate in rates.items()
    ]
    varied = {} if sizes is None else {"varied": "train.batch_size"}
    return {"protocol": "speed", "rows": rows, "comparisons": [], "findings": [], "curves": [], **varied}


def planned(name: str, rate: float | None, setting: str = "one", size: int | None = None) -> dict[str, Any]:
    return {
        "device": "l4",
        "num_devices": 1,
        "configuration": name,
        "setting": setting,
        "changes": {} if size is None else {"train.batch_size": size},
        "values": {} if rate is None else {AXIS: [rate, rate / 2, rate * 2]},
        "verdict": "fits",
        "missing": None if rate is not None else "no time: the speed of compiled blocks",
    }


def results(study: dict[str, Any], *forecasts: dict[str, Any]) -> PartResults:
    return PartResults(study=study, forecasts=forecasts, digests={}, model="sd3-medium")


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8") as text:
        return list(csv.DictReader(text))


def test_measured_and_forecast_stand_beside_each_other(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study = measured({("eager", "one"): 10.0, ("compiled", "one"): 12.0})
    part = results(study, planned("eager", 40.0), planned("compiled", None))
    figure = SeriesFigure(part="speed", title="Speed", show=(AXIS,))
    drawn = write_figure("speed", figure, part, tmp_path)
    assert [file.name for file in drawn.files] == ["speed.svg", "speed.png", "speed.csv"]
    found = [(row["source"], row["configuration"], float(row["value"])) for row in rows_of(drawn.files[2])]
    assert found == [
        ("measured here", "eager", 10.0),
        ("measured here", "compiled", 12.0),
        ("forecast: sd3-medium on l4", "eager", 40.0),
    ]
    picture = drawn.files[0].read_text(encoding="utf-8")
    for words in ("measured here", "forecast: sd3-medium on l4", "compiled: no time"):
        assert words in picture
    assert drawn.table.rows == (
        ("eager", "10.0 (9.0 to 11.0)", "40 (20 to 80)"),
        ("compiled", "12.0 (10.8 to 13.2)", "–"),
    )


def test_a_forecast_may_have_configurations_of_its_own(tmp_path: Path) -> None:
    """Also numbers on the axis that were not measured."""
    pytest.importorskip("matplotlib")
    study = measured({("b-1", "one"): 1.0, ("b-4", "one"): 3.0, ("b-8", "one"): 5.0}, {"b-1": 1, "b-4": 4, "b-8": 8})
    part = results(study, planned("b-1", 2.0, size=1), planned("b-2", 4.0, size=2), planned("b-16", 9.0, size=16))
    assert part.at == {"b-1": 1, "b-4": 4, "b-8": 8, "b-2": 2, "b-16": 16}
    drawn = write_figure("speed", SeriesFigure(part="speed", title="Speed", show=(AXIS,)), part, tmp_path)
    assert "train.batch_size" in drawn.files[0].read_text(encoding="utf-8"), "a line over the batch size"


def test_the_best_batch_is_that_with_the_highest_rate() -> None:
    study = measured({("b-1", "bf16"): 1.0, ("b-4", "bf16"): 3.0, ("b-8", "bf16"): 2.5}, {"b-1": 1, "b-4": 4, "b-8": 8})
    (row,) = best_batch_table(results(study)).rows
    assert row[1:] == ("bf16", "1.00 (0.90 to 1.10)", "3.0 (2.7 to 3.3), batch 4")


def test_speeds_of_several_devices_are_shown_for_each() -> None:
    study = measured({("b-1", "bf16"): 1.0, ("b-4", "bf16"): 3.0}, {"b-1": 1, "b-4": 4})
    forecasts = [{**planned(name, rate, "bf16"), "num_devices": 8} for name, rate in (("b-1", 16.0), ("b-4", 40.0))]
    table = best_batch_table(results(study, *forecasts), per_device=True)
    assert table.head[2:] == (
        "samples/s of each device at micro batch 1",
        "samples/s of each device at the best micro batch (which)",
    )
    assert table.rows[1][2:] == ("2.0 (1.0 to 4.0)", "5 (2 to 10), batch 4")
    (_, total), (_, each) = (
        tuple(panels_of(AXIS, results(study, *forecasts), per_device=one)) for one in (False, True)
    )
    assert [point.value for point in total.points] == [16.0, 40.0]
    assert [point.value for point in each.points] == [2.0, 5.0]


def test_efficiency_is_drawn_over_the_number_of_devices(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study = measured({("b-8", "one"): 10.0, ("b-8", "two"): 16.0})
    for row, num in zip(study["rows"], (1, 2), strict=True):
        row["num_devices"] = num
    forecasts = [
        {**planned("b-8", rate), "num_devices": num, "setting": str(num)}
        for num, rate in ((1, 9.0), (2, 18.0), (4, 27.0))
    ]
    figure = SeriesFigure(part="speed", title="Efficiency", kind="efficiency")
    drawn = write_figure("efficiency", figure, results(study, *forecasts), tmp_path)
    found = [(row["source"], row["configuration"], float(row["value"])) for row in rows_of(drawn.files[2])]
    forecast = "forecast: sd3-medium on l4"
    assert found == [
        ("measured here", "1", 100.0), ("measured here", "2", 80.0),
        (forecast, "1", 100.0), (forecast, "2", 100.0), (forecast, "4", 75.0),
    ]  # fmt: skip
    assert drawn.table.rows == (("b-8", "1", "100", "100"), ("b-8", "2", "80", "100"), ("b-8", "4", "–", "75"))


def test_what_was_not_measured_is_said() -> None:
    (panel,) = panels_of("psnr", results(measured({("a", "one"): 1.0})))
    assert panel.points == ()
    assert panel.missing == "nothing was measured"


def test_a_name_has_one_colour_in_all_panels(tmp_path: Path) -> None:
    """Also where a panel lacks the first of them."""
    pytest.importorskip("matplotlib")
    study = measured({("b-8", "one"): 10.0, ("b-8", "two"): 16.0})
    for row, num in zip(study["rows"], (1, 2), strict=True):
        row["num_devices"] = num
    forecasts = [{**planned(name, 9.0 * num), "num_devices": num} for name in ("b-1", "b-8") for num in (1, 2)]
    figure = SeriesFigure(part="speed", title="Efficiency", kind="efficiency")
    picture = write_figure("efficiency", figure, results(study, *forecasts), tmp_path).files[0].read_text("utf-8")
    lines = [line for line in picture.splitlines() if "stroke-width: 1.4" in line]
    colours = [line.partition("stroke: ")[2].partition(";")[0] for line in lines]
    # measured b-8; forecast b-1, b-8; the legend.
    assert colours[0] == colours[2] != colours[1]
