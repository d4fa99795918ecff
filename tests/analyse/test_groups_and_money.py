"""Configurations, their names, what they cost, and which of them nothing beats."""

from pathlib import Path

import pytest

from foretune.analyse.frontier import front_by_mean, placed
from foretune.analyse.groups import configurations
from foretune.analyse.money import catalogue_device, catalogue_price, pricing
from foretune.analyse.recommending import recommend
from foretune.analyse.run_data import runs_in
from foretune.analyse.run_numbers import MEMORY, MONEY, TIME, measures
from tests.analyse.made_runs import asked, make_repeats, make_run

_CARD = {"torch": {"devices": [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85 * 10**9}]}}


def test_seeds_are_repeats_and_the_rest_is_named(tmp_path: Path) -> None:
    for seed in range(2):
        for rank in (8, 16):
            experiment = asked(method={"kind": "lora", "rank": rank}, train={"seed": seed})
            make_run(tmp_path / f"r{rank}-{seed}", [0.1] * 20, experiment=experiment)
        quantized = asked(method={"kind": "lora", "rank": 8}, quantize={"denoiser": "int8"}, train={"seed": seed})
        make_run(tmp_path / f"q-{seed}", [0.1] * 20, experiment=quantized)
    found = configurations(runs_in(tmp_path))
    assert [one.label for one in found] == ["LoRA rank 8", "LoRA rank 8, int8 base", "LoRA rank 16"]
    assert [len(one.runs) for one in found] == [2, 2, 2]


def test_a_run_without_data_joins_its_likes(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.1] * 20, effective={"data_fingerprint": "x"})
    make_run(tmp_path / "b", [], status="failed")
    make_run(tmp_path / "c", [0.1] * 20, effective={"data_fingerprint": "y"})
    found = configurations(runs_in(tmp_path))
    assert sorted(len(one.runs) for one in found) == [1, 2]
    assert len({one.label for one in found}) == 2, "distinguished by a piece of their hash"


@pytest.mark.parametrize(
    ("name", "gigabytes", "title"),
    [
        ("NVIDIA H100 80GB HBM3", 85, "H100 SXM"),
        ("NVIDIA H100 PCIe", 85, "H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", 42, "A100-40GB SXM"),
        ("NVIDIA GeForce RTX 4070 Ti", 12, "RTX 4070 Ti"),
        ("NVIDIA GeForce RTX 4070", 12, "RTX 4070"),
        ("AMD Instinct MI300X", 206, "MI300X"),
    ],
)
def test_the_catalogue_knows_a_card_by_its_driver(name: str, gigabytes: int, title: str | None) -> None:
    found = catalogue_device({"torch": {"devices": [{"name": name, "memory_bytes": gigabytes * 10**9}]}})
    assert (None if found is None else found.title) == title


def test_a_price_says_how_old_it_is(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.1] * 20, environment=_CARD)
    (run,) = runs_in(tmp_path)
    price = catalogue_price(run)
    assert price is not None
    assert "old when the run was made" in price.source
    assert price.usd(1800, num_devices=2) == pytest.approx(price.usd_per_hour)
    price = pricing(1.5)(run)
    assert price is not None
    assert price.usd_per_hour == 1.5
    make_run(tmp_path / "b" / "own", [0.1] * 20)
    (own,) = runs_in(tmp_path / "b")
    assert catalogue_price(own) is None


def test_a_run_on_the_processor_has_no_price_of_the_gpu_beside_it(tmp_path: Path) -> None:
    make_run(tmp_path / "cpu", [0.1] * 20, environment=_CARD, experiment=asked(parallel={"device": "cpu"}))
    (run,) = runs_in(tmp_path)
    assert catalogue_price(run) is None


def test_the_front_of_points() -> None:
    points = [(1.0, 1.0), (2.0, 2.0), (3.0, 1.5), (1.0, 0.5)]
    assert front_by_mean(points, (False, True)) == [0, 1]


def test_where_configurations_stand(tmp_path: Path) -> None:
    """Slow and large is beaten; a little slower by chance may be on the front."""
    slow = asked(method={"kind": "full"})
    close = asked(method={"kind": "lora", "rank": 4})
    make_repeats(tmp_path / "fast", (0.100, 0.101, 0.099))
    make_repeats(tmp_path / "slow", (0.300, 0.301, 0.299), experiment=slow, peak_host_bytes=2**31)
    make_repeats(tmp_path / "close", (0.100, 0.104, 0.099), experiment=close)
    found = configurations(runs_in(tmp_path))
    axes = [one for one in measures(found, pricing(None), {}) if one.name in (TIME, MEMORY)]
    standing = {one.configuration.label: one.standing for one in placed(found, axes)}
    assert standing == {"full fine-tuning": "beaten", "LoRA rank 4": "maybe", "LoRA rank 16": "on the front"}


def test_the_cheapest_is_taken_where_no_best_is_shown(tmp_path: Path) -> None:
    make_repeats(tmp_path / "a", (0.100, 0.109, 0.095), num_steps=60)
    make_repeats(
        tmp_path / "b", (0.101, 0.108, 0.098), experiment=asked(method={"kind": "lora", "rank": 4}), num_steps=60
    )
    found = configurations(runs_in(tmp_path))
    said = recommend(found, measures(found, pricing(1.0), {}))
    assert not said.is_best_shown
    assert said.chosen is not None
    assert said.headline == "Tie: no difference in time or peak memory is shown between LoRA rank 4 and LoRA rank 16"
    assert "Take the cheapest: " in said.detail
    assert "quality was not measured" in (said.finding.caveat or "").lower()
    assert MONEY not in {name for name, _ in said.rankings}, "at one price, money is time again"


def test_time_that_was_held_equal_decides_nothing(tmp_path: Path) -> None:
    """The second is a little shorter in every run; both were given the same time."""
    timed = {"train": {"steps": None, "seconds": 10}}
    make_repeats(tmp_path / "a", (0.1000, 0.1001, 0.1002), experiment=asked(**timed), num_steps=60)
    shorter = asked(method={"kind": "lora", "rank": 4}, **timed)
    make_repeats(tmp_path / "b", (0.0900, 0.0901, 0.0902), experiment=shorter, num_steps=60)
    found = configurations(runs_in(tmp_path))
    said = recommend(found, measures(found, pricing(1.0), {}))
    assert not {TIME, MONEY} & {name for name, _ in said.rankings}
    assert "Take the smallest: " in said.detail


def test_nothing_finished_is_nothing_recommended(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.1], status="failed")
    said = recommend(configurations(runs_in(tmp_path)), ())
    assert said.chosen is None
    assert said.finding.sentence == "No result: no run has finished."
