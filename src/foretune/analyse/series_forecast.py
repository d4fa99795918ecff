"""Plans the full-size experiment of a series on named hardware, in the configurations of a study."""

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from foretune.analyse.study_cells import (
    COST,
    ITERATION_SPEED,
    PEAK_MEMORY,
    RUN_TIME,
    SAMPLE_RATE,
    STEP_TIME,
    TRAINING_SPEED,
    epoch_title,
)
from foretune.choices.study import StudyFile
from foretune.choices.study_series import SeriesForecast
from foretune.config.overrides import apply_overrides
from foretune.config.study_files import ONLY_SETTING
from foretune.core.errors import UserError
from foretune.core.units import MIB
from foretune.core.values import Plan
from foretune.core.values.plan import Verdict
from foretune.core.values.plan_time import StepTime

_ONLY_HERE = ("parallel.device", "parallel.threads", "model", "fixtures")
"""Changes of a configuration that say where a measurement is made."""

Band = tuple[float, float, float]
"""The likely value with the low and the high end of its band."""
Planner = Callable[[Mapping[str, Any], str], Plan]
"""Plans an experiment on a device; raises a `UserError` where it cannot."""


@dataclass(frozen=True, kw_only=True)
class ForecastRow:
    """The forecast for one configuration and setting on one kind of device."""

    device: str
    configuration: str
    setting: str
    changes: dict[str, Any]
    """The keys that the configuration changes in the experiment."""
    num_devices: int = 1
    usd_per_hour: float | None = None
    """The catalogue's price of all these devices; None where it has none."""
    values: dict[str, Band]
    """By the title of the axis. A configuration that does not fit has a peak of memory and no speed."""
    verdict: Verdict | None = None
    missing: str | None = None
    """The reason why there is no speed, or no plan."""


def forecast_rows(study: StudyFile, forecast: SeriesForecast, plan: Planner) -> list[ForecastRow]:
    """Plans each configuration of a study in each setting on each device."""
    num_samples = forecast.epoch_samples or study.epoch_samples
    settings = forecast.settings or study.settings or {ONLY_SETTING: {}}
    configurations = forecast.configurations or study.compared
    rows = []
    for device, setting, name in itertools.product(forecast.on, settings, configurations):
        changes = {**settings[setting], **configurations[name]}
        overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items() if key not in _ONLY_HERE]
        try:
            found = _planned(plan(apply_overrides(forecast.experiment, overrides), device), num_samples)
        except UserError as error:
            found = {"values": {}, "missing": str(error)}
        rows.append(
            ForecastRow(device=device, configuration=name, setting=setting, changes=configurations[name], **found)
        )
    return rows


def _planned(plan: Plan, num_samples: int | None) -> dict[str, Any]:
    """What a plan says of its configuration."""
    memory = (plan.process_bytes / MIB, plan.process_low_bytes / MIB, plan.process_high_bytes / MIB)
    found: dict[str, Any] = {"values": {PEAK_MEMORY: memory}, "verdict": plan.verdict, "num_devices": plan.world_size}
    if plan.verdict == "does not fit":
        return {**found, "missing": "does not fit"}
    if plan.time is None:
        return {**found, "missing": f"no time: {plan.no_time}"}
    found["values"] |= _speeds(plan.time, num_samples)
    if plan.cost is not None:
        found["values"][RUN_TIME] = (plan.cost.total_s, plan.cost.low_s, plan.cost.high_s)
        if plan.cost.usd_per_hour is not None:
            found["usd_per_hour"] = usd_per_hour = plan.cost.usd_per_hour * plan.world_size
            found["values"][COST] = tuple(usd_per_hour * end / 3600 for end in found["values"][RUN_TIME])
    return found


def _speeds(time: StepTime, num_samples: int | None) -> dict[str, Band]:
    samples = time.samples_per_s * time.step_s
    rates = _rates(samples, time)
    speeds = {
        STEP_TIME: _times(1000, time),
        SAMPLE_RATE: rates,
        TRAINING_SPEED: rates,
        ITERATION_SPEED: _rates(1, time),
    }
    if num_samples is not None:
        speeds[epoch_title(num_samples)] = _times(num_samples / samples / 60, time)
    return speeds


def _times(factor: float, time: StepTime) -> Band:
    return factor * time.step_s, factor * time.low_s, factor * time.high_s


def _rates(count: float, time: StepTime) -> Band:
    return count / time.step_s, count / time.high_s, count / time.low_s
