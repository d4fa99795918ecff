"""Plans the full-size experiment of a series on named hardware, in the configurations of a study."""

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from foretune.analyse.inference_study import IMAGE_STEPS
from foretune.analyse.study_cells import (
    COST,
    INFERENCE_SPEED,
    ITERATION_SPEED,
    PEAK_MEMORY,
    RUN_TIME,
    SAMPLE_RATE,
    STEP_TIME,
    TRAINING_SPEED,
    epoch_title,
)
from foretune.choices.method import Full, Lora, Method, rank_of
from foretune.choices.quantize import sampled_numbers
from foretune.choices.study import StudyFile, StudyInference
from foretune.choices.study_series import SeriesForecast, SeriesInference
from foretune.config.overrides import apply_overrides
from foretune.config.study_files import ONLY_SETTING
from foretune.core.errors import UserError
from foretune.core.units import MIB
from foretune.core.values import InferencePlan, Plan
from foretune.core.values.plan import Verdict
from foretune.core.values.plan_time import StepTime

_ONLY_HERE = ("parallel.device", "parallel.threads", "model", "fixtures")
"""Changes of a configuration that say where a measurement is made."""

_METHOD: TypeAdapter[Method] = TypeAdapter(Method)

Band = tuple[float, float, float]
"""The likely value with the low and the high end of its band."""
Planner = Callable[[Mapping[str, Any], str], Plan]
"""Plans an experiment on a device; raises a `UserError` where it cannot."""
InferencePlanner = Callable[[Mapping[str, Any], str], InferencePlan]
"""Plans inference by the parameters of `plan_inference` on a device; raises a `UserError` where it cannot."""


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


def inference_rows(
    inference: SeriesInference, forecast: SeriesForecast, plan: InferencePlanner, *, trained_rank: int | None = None
) -> list[ForecastRow]:
    """Plans each way to sample on each device. Speeds are those of all devices of a variant, memory that of one.

    `trained_rank`: rank of the adapter that is sampled with; it takes part in each pass unless it is merged.
    """
    rows = []
    for device, (name, changes) in itertools.product(forecast.on, inference.variants.items()):
        has_adapter = not changes.get("merge", False)
        question = {
            "precision": "fp32",
            **{key: changes[key] for key in ("precision", "quantize", "compile", "batch") if key in changes},
            "adapter_rank": trained_rank if has_adapter else None,
            "inference_steps": inference.inference_steps,
        }
        num_devices = changes.get("devices", 1)
        if has_adapter and changes.get("adapter") is not None:
            found: dict[str, Any] = {
                "values": {},
                "missing": f"the rank of the adapter {changes['adapter']} is not known",
            }
        else:
            found = _inferred(forecast.experiment, question, plan, device, num_devices)
        rows.append(
            ForecastRow(
                device=device,
                configuration=name,
                setting=ONLY_SETTING,
                changes=dict(changes),
                num_devices=num_devices,
                **found,
            )
        )
    return rows


def _inferred(
    experiment: Mapping[str, Any],
    question: Mapping[str, Any],
    plan: InferencePlanner,
    device: str,
    num_devices: int = 1,
) -> dict[str, Any]:
    """What a plan of inference says of the full-size model, where each device makes such batches."""
    data = experiment.get("data", {})
    sizes = {"model": experiment["model"], "size": data.get("resolution"), "frames": data.get("num_frames")}
    try:
        found = plan({**sizes, "only_denoising": True, **question}, device)
    except UserError as error:
        return {"values": {}, "missing": str(error)}
    memory = (found.process_bytes / MIB, found.process_low_bytes / MIB, found.process_high_bytes / MIB)
    values = {PEAK_MEMORY: memory}
    if found.verdict == "does not fit":
        return {"values": values, "verdict": found.verdict, "missing": "does not fit"}
    if found.time is None:
        return {"values": values, "verdict": found.verdict, "missing": f"no time: {found.no_time}"}
    shares = (1.0, found.time.total_s / found.time.high_s, found.time.total_s / found.time.low_s)
    likely, low, high = (share * num_devices * found.time.denoising_passes_per_s for share in shares)
    values[INFERENCE_SPEED] = (likely, low, high)
    values[IMAGE_STEPS] = (found.batch_size * likely, found.batch_size * low, found.batch_size * high)
    return {"values": values, "verdict": found.verdict}


def forecast_rows(
    study: StudyFile, forecast: SeriesForecast, plan: Planner, infer: InferencePlanner | None = None
) -> list[ForecastRow]:
    """Plans each configuration of a study in each setting on each device.

    `infer` plans the denoising speed that equal-steps measures after each training.
    """
    num_samples = forecast.epoch_samples or study.epoch_samples
    settings = forecast.settings or study.settings or {ONLY_SETTING: {}}
    configurations = forecast.configurations or study.compared
    rows = []
    for device, setting, name in itertools.product(forecast.on, settings, configurations):
        changes = {**settings[setting], **configurations[name]}
        try:
            experiment = configured(forecast.experiment, changes)
            found = _planned(plan(experiment, device), num_samples)
            if infer is not None and study.protocol == "equal-steps":
                _add_denoising_speed(found, experiment, study.inference or StudyInference(), infer, device)
        except UserError as error:
            found = {"values": {}, "missing": str(error)}
        rows.append(
            ForecastRow(device=device, configuration=name, setting=setting, changes=configurations[name], **found)
        )
    return rows


def configured(experiment: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an experiment with the changes of a configuration, but for where it runs."""
    return apply_overrides(
        experiment, [f"{key}={json.dumps(value)}" for key, value in changes.items() if key not in _ONLY_HERE]
    )


def adapter_rank(experiment: Mapping[str, Any]) -> int | None:
    """Rank of the adapter that an experiment trains; None where it trains every weight."""
    content = experiment.get("method")
    try:
        method: Method = Lora() if content is None else _METHOD.validate_python(content)
    except ValidationError as error:
        raise UserError(f"method: {error.errors()[0]['msg']}") from error
    return None if isinstance(method, Full) else rank_of(method)


def _add_denoising_speed(
    found: dict[str, Any], experiment: Mapping[str, Any], asked: StudyInference, infer: InferencePlanner, device: str
) -> None:
    """Adds the denoising speed on one device, or why there is none."""
    question = {
        "precision": asked.precision,
        "batch": asked.batch_size,
        "adapter_rank": adapter_rank(experiment),
        "quantize": sampled_numbers(experiment.get("quantize", {}).get("denoiser", "none")),
    }
    inferred = _inferred(experiment, question, infer, device)
    if INFERENCE_SPEED in inferred["values"]:
        found["values"] = {**found["values"], INFERENCE_SPEED: inferred["values"][INFERENCE_SPEED]}
    else:
        why = f"denoising at batch {asked.batch_size} in {asked.precision}: {inferred['missing']}"
        found["missing"] = "; ".join(filter(None, (found.get("missing"), why)))


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
