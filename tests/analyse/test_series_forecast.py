"""Forecasts beside a study: each configuration in each setting, and no speed of what does not fit."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from foretune.analyse.series_forecast import ForecastRow, forecast_rows
from foretune.choices.study import StudyFile
from foretune.choices.study_series import SeriesForecast
from foretune.core.errors import UserError
from foretune.core.units import MIB

STUDY = StudyFile.model_validate(
    {
        "protocol": "speed",
        "experiment": {},
        "steps": 4,
        "epoch_samples": 600,
        "settings": {"one": {"parallel.devices": 1}, "two": {"parallel.devices": 2}},
        "configurations": {
            "lora": {"method.kind": "lora", "parallel.device": "cpu"},
            "full": {"method.kind": "full"},
            "wrong": {"method.kind": "wrong"},
        },
    }
)


def plan(experiment: Mapping[str, Any], device: str) -> Any:
    """Two samples in a step of 0.5 s; full fine-tuning does not fit."""
    assert device == "l4"
    assert "device" not in experiment["parallel"], "where a measurement is made says nothing of the forecast"
    kind, num_devices = experiment["method"]["kind"], experiment["parallel"]["devices"]
    if kind == "wrong":
        raise UserError("there is no such method")
    time = SimpleNamespace(step_s=0.5, low_s=0.4, high_s=1.0, samples_per_s=4.0 * num_devices)
    cost = SimpleNamespace(total_s=3600.0, low_s=1800.0, high_s=7200.0, usd_per_hour=0.8)
    return SimpleNamespace(
        cost=cost, process_bytes=8 * MIB, process_low_bytes=7 * MIB, process_high_bytes=9 * MIB, world_size=num_devices,
        verdict="does not fit" if kind == "full" else "fits", time=time, no_time=None,
    )  # fmt: skip


def row(rows: list[ForecastRow], name: str, setting: str) -> ForecastRow:
    (found,) = [one for one in rows if (one.configuration, one.setting) == (name, setting)]
    return found


def test_each_configuration_in_each_setting() -> None:
    forecast = SeriesForecast(experiment={"model": "sd3-medium", "parallel": {"devices": 1}}, on=("l4",))
    rows = forecast_rows(STUDY, forecast, plan)
    assert len(rows) == 6
    lora = row(rows, "lora", "two")
    assert lora.num_devices == 2
    assert lora.values == {
        "peak memory, MiB": (8, 7, 9),
        "step time, ms": (500, 400, 1000),
        "samples/s": (8, 4, 10),
        "training, samples/s": (8, 4, 10),
        "training, iterations/s": (2, 1, 2.5),
        # 600 samples at 8 a second are 75 s.
        "time for 600 samples, min": (1.25, 1, 2.5),
        # Two devices at $0.80 an hour.
        "time of the run, s": (3600, 1800, 7200),
        "cost of the run, $": (1.6, 0.8, 3.2),
    }
    assert lora.usd_per_hour == 1.6
    full = row(rows, "full", "one")
    assert (full.verdict, full.missing) == ("does not fit", "does not fit")
    assert full.values == {"peak memory, MiB": (8, 7, 9)}, "what does not fit has no speed"
    wrong = row(rows, "wrong", "one")
    assert (wrong.values, wrong.missing) == ({}, "there is no such method")
