"""Quality at equal time and speed at equal steps of the same machines in one table, with each machine's own price."""

from pathlib import Path
from typing import Any

import pytest

from foretune.analyse.joined_view import JoinedQuantity, JoinedView, joined_view, joined_views
from foretune.analyse.study_cells import COST, SAMPLES_COST
from foretune.analyse.study_summary import stored_studies, summarise_study
from tests.analyse.made_studies import make_part

COST_OF_SAMPLES = JoinedQuantity(protocol="equal-steps", title=SAMPLES_COST, higher_is_better=False)
MACHINES = {"laptop": 0.5, "cluster": 2.0}


def studies(folder: Path, *, names: dict[str, float] = MACHINES) -> list[dict[str, Any]]:
    for seed in range(3):
        for place, (name, price) in enumerate(names.items()):
            shared: dict[str, Any] = {"order": (0, place), "step_s": 0.2 - 0.1 * place}
            make_part(
                folder, name, seed, name="quality", counted_s=2.0, scores={"psnr": 20.0 + seed + place},
                about={"usd_per_hour": price}, **shared,
            )  # fmt: skip
            make_part(
                folder, name, seed, name="speed", protocol="equal-steps", pass_s=0.5, about={"usd_per_hour": price},
                **shared,
            )  # fmt: skip
    return [summarise_study(folder / name).to_mapping() for name in ("quality", "speed")]


def cells(view: JoinedView, name: str) -> list[str]:
    head, *lines = view.table()
    place = head.index(name)
    return [f"{line[0]}: {line[place]}" for line in lines]


def test_both_rankings_stand_in_one_table(tmp_path: Path) -> None:
    (view,) = joined_views(studies(tmp_path))
    assert view.is_joined
    laptop = " | ".join(cells(view, "laptop"))
    for words in (
        "price, $/h: 0.5", "psnr (equal time): 21", "training, iterations/s: 4.99", "training, samples/s:",
        "inference, steps/s: 2.00", "peak memory, MiB:",
    ):  # fmt: skip
        assert words in laptop, words
    costs = {row.configuration: row.values[one][0] for row in view.rows for one in row.values if one == COST_OF_SAMPLES}
    # Two samples every 0.2 s at $0.50 an hour, and every 0.1 s at $2.
    assert costs["laptop"] == pytest.approx(500 * 0.2 * 0.5 / 3600, rel=0.01)
    assert costs["cluster"] == pytest.approx(500 * 0.1 * 2 / 3600, rel=0.01)


def test_two_devices_cost_the_same_for_a_sample_where_they_are_twice_as_fast(tmp_path: Path) -> None:
    """At equal steps they train twice the samples."""
    for seed in range(3):
        for place, num in enumerate((1, 2)):
            make_part(
                tmp_path, f"{num}-devices", seed, name="speed", protocol="equal-steps", num_devices=num,
                order=(0, place), about={"usd_per_hour": 0.5 * num},
            )  # fmt: skip
    study = summarise_study(tmp_path / "speed").to_mapping()
    one, two = (row["values"][SAMPLES_COST]["value"] for row in study["rows"])
    assert one == pytest.approx(two)
    assert COST not in {axis["title"] for axis in study["axes"]}, "the cost of the run stays at equal time"


def test_forecasts_stand_beside_what_was_measured(tmp_path: Path) -> None:
    def planned(name: str, num: int, **values: float) -> dict[str, Any]:
        titles = {"rate": "training, samples/s", "peak": "peak memory, MiB", "run": "time of the run, s"}
        bands = {titles[key]: [value, value / 2, value * 2] for key, value in values.items()}
        place = {"device": "l4", "num_devices": num, "configuration": name, "setting": "as-asked"}
        return {**place, "usd_per_hour": 0.8 * num, "values": bands}

    forecasts = [planned("lora", 4, rate=8.0, run=9e9), planned("full", 1, peak=100.0), planned("many", 8, peak=100.0)]
    view = joined_view(studies(tmp_path), forecasts, "flux.1-dev")
    assert view is not None
    head = view.table()[0]
    assert head[3:] == ["forecast for flux.1-dev: lora", "forecast for flux.1-dev: full"], "many devices have no speed"
    four = cells(view, head[3])
    assert four[:2] == ["machine: 4 x l4", "price, $/h: 3.2"]
    assert "training, samples/s: 8 (4 to 16)" in four
    assert "time of the run, s (equal steps): –" in four, "it is that of another job"


def test_studies_of_other_configurations_are_tables_of_their_own(tmp_path: Path) -> None:
    mappings = [*studies(tmp_path), *studies(tmp_path / "more", names={"other": 1.0})]
    assert [len(view.rows) for view in joined_views(mappings)] == [2, 1]
    speed = [one for one in mappings if one["name"] == "speed"]
    assert not joined_views(speed)[0].is_joined
    assert joined_views([*speed, *speed]) == [joined_view([one]) for one in (*speed, *speed)], "never one over another"


def test_a_price_of_the_file_counts_more_than_that_of_the_runs(tmp_path: Path) -> None:
    studies(tmp_path)
    row = summarise_study(tmp_path / "speed", prices={"laptop": 5.0}).to_mapping()["rows"]
    assert [one["usd_per_hour"] for one in row] == [5.0, None]


def test_a_folder_of_studies_is_read_from_its_runs(tmp_path: Path) -> None:
    for name, study in zip(("quality", "speed"), studies(tmp_path), strict=True):
        (tmp_path / name / "study.json").write_text("{}")
        assert study["name"] == name
    (view,) = joined_views(stored_studies([tmp_path]).studies)
    assert view.is_joined
