"""Efficiency on several devices, measured seed by seed and forecast, against one device at the same batch."""

from typing import Any

import pytest

from foretune.analyse.device_scaling import scaling, scaling_sentences


def row(name: str, num_devices: int, **rates: float) -> dict[str, Any]:
    by_seed = {key.removeprefix("seed"): rate for key, rate in rates.items()}
    return {"configuration": name, "num_devices": num_devices, "values": {"samples/s": {"by_seed": by_seed}}}


def planned(name: str, num_devices: int, rate: float) -> dict[str, Any]:
    place = {"device": "l4", "configuration": name, "num_devices": num_devices}
    return {**place, "values": {"samples/s": [rate, rate / 2, rate * 2]}}


def test_each_seed_is_held_against_itself_on_one_device() -> None:
    """Rates differ by seed ten times; efficiencies do not."""
    rows = [row("b", 1, seed0=10.0, seed1=100.0, seed2=1.0), row("b", 2, seed0=16.0, seed1=160.0, seed2=1.7)]
    alone, two = scaling({"rows": rows}, ())
    assert (alone.value, alone.low) == (1.0, None)
    assert two.value == pytest.approx((0.8 + 0.8 + 0.85) / 3)
    assert two.low is not None
    assert two.low > 0.7


def test_what_ran_on_one_device_only_has_no_efficiency() -> None:
    assert scaling({"rows": [row("b", 1, seed0=1.0), row("c", 2, seed0=1.0)]}, [planned("b", 1, 1.0)]) == []


def test_the_last_configuration_is_said_in_a_sentence() -> None:
    rows = [row(name, num, seed0=num * rate) for name, rate in (("b-1", 1.0), ("b-8", 2.0)) for num in (1, 2)]
    forecasts = [planned("b-8", num, rate) for num, rate in ((1, 10.0), (2, 19.0), (4, 36.0))]
    assert list(scaling_sentences(scaling({"rows": rows}, forecasts), ["b-1", "b-8"])) == [
        "Efficiency by number of devices, b-8, here: 100 % on 2.",
        "Efficiency by number of devices, b-8, forecast for l4: 95 % on 2, 90 % on 4.",
    ]


def test_several_settings_on_one_device_are_no_base() -> None:
    rows = [row("b", 1, seed0=1.0), row("b", 1, seed0=5.0), row("b", 2, seed0=2.0)]
    forecasts = [planned("b", 1, 1.0), planned("b", 1, 5.0), planned("b", 2, 2.0)]
    assert scaling({"rows": rows}, forecasts) == []
