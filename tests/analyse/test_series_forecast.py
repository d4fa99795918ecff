"""Forecasts beside a study: each configuration in each setting, and no speed of what does not fit."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from foretune.analyse.series_forecast import ForecastRow, adapter_rank, forecast_rows, inference_rows, settings_text
from foretune.choices.study import StudyFile
from foretune.choices.study_series import SeriesForecast, SeriesInference
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
        # 125 s of two devices at $0.80 an hour, and dearer where the speed is lower.
        "cost of 1,000 samples, $": pytest.approx((1.6 / 28.8, 1.6 / 36, 1.6 / 14.4)),
    }
    assert lora.usd_per_hour == 1.6
    full = row(rows, "full", "one")
    assert (full.verdict, full.missing) == ("does not fit", "does not fit")
    assert full.values == {"peak memory, MiB": (8, 7, 9)}, "what does not fit has no speed"
    wrong = row(rows, "wrong", "one")
    assert (wrong.values, wrong.missing) == ({}, "there is no such method")


def infer(question: Mapping[str, Any], device: str) -> Any:
    """A pass of 0.25 s, with a band of twice the time; nothing is known of compiled blocks."""
    assert device == "l4"
    assert (question["model"], question["size"]) == ("sd3-medium", 512)
    assert question["only_denoising"], "as a bench measures"
    is_compiled = question.get("compile", "off") != "off"
    time = None if is_compiled else SimpleNamespace(
        denoising_passes_per_s=4.0, total_s=10, low_s=5, high_s=20, rank=question["adapter_rank"]
    )  # fmt: skip
    batch = question.get("batch", 1)
    return SimpleNamespace(
        process_bytes=8 * MIB * batch, process_low_bytes=7 * MIB, process_high_bytes=900 * MIB, batch_size=batch,
        verdict="does not fit" if batch > 8 else "fits", time=time, no_time="compiled" if is_compiled else None,
    )  # fmt: skip


FULL_SIZE = SeriesForecast(experiment={"model": "sd3-medium", "data": {"resolution": 512}}, on=("l4",))


def test_each_way_to_sample_is_planned() -> None:
    variants = {"plain": {}, "four": {"batch": 4}, "fast": {"compile": "regional"}, "many": {"batch": 16}}
    asked = SeriesInference.model_validate({"variants": variants})
    plain, four, fast, many = inference_rows(asked, FULL_SIZE, infer)
    speeds = {"inference, steps/s": (4, 2, 8), "image-steps/s": (4, 2, 8)}
    assert plain.values == {"peak memory, MiB": (8, 7, 900), **speeds}
    assert four.values["image-steps/s"][0] == 16
    assert (list(fast.values), fast.missing) == (["peak memory, MiB"], "no time: compiled")
    assert (list(many.values), many.missing) == (["peak memory, MiB"], "does not fit")


def test_an_adapter_takes_part_unless_it_is_merged() -> None:
    ranks = []

    def noted(question: Mapping[str, Any], device: str) -> Any:
        ranks.append((question["precision"], question["adapter_rank"]))
        return infer(question, device)

    variants = {"merged": {"merge": True}, "beside": {"precision": "bf16"}}
    asked = SeriesInference.model_validate({"variants": variants})
    inference_rows(asked, FULL_SIZE, noted, trained_rank=16)
    assert ranks == [("fp32", None), ("bf16", 16)]


def test_speeds_of_several_devices_are_those_of_all() -> None:
    asked = SeriesInference.model_validate({"variants": {"two": {"devices": 2, "batch": 4}}})
    (two,) = inference_rows(asked, FULL_SIZE, infer)
    assert two.num_devices == 2
    assert list(two.values["inference, steps/s"]) == [8, 4, 16]
    assert two.values["image-steps/s"][0] == 32
    assert two.values["peak memory, MiB"][0] == 32, "that of one device"


def test_an_adapter_of_unknown_rank_has_no_forecast() -> None:
    variants = {"beside": {"adapter": "mine"}, "merged": {"adapter": "mine", "merge": True}}
    beside, merged = inference_rows(SeriesInference.model_validate({"variants": variants}), FULL_SIZE, infer)
    assert (beside.values, beside.missing) == ({}, "the rank of the adapter mine is not known")
    assert merged.missing is None


@pytest.mark.parametrize(
    ("method", "rank"),
    [
        ({"kind": "full"}, None),
        ({"kind": "lora"}, 16),
        ({"kind": "rslora", "rank": 4}, 4),
        ({"kind": "dora"}, 16),
        ({"kind": "oft"}, 1),
        (None, 16),
    ],
)
def test_the_rank_of_an_adapter_is_that_of_its_method(method: dict[str, Any] | None, rank: int | None) -> None:
    assert adapter_rank({} if method is None else {"method": method}) == rank


def test_a_method_that_does_not_exist_is_a_reason() -> None:
    with pytest.raises(UserError, match="method: "):
        adapter_rank({"method": {"kind": "none"}})


@pytest.mark.parametrize(("numbers", "sampled"), [("float8-training", "none"), ("int8", "int8")])
def test_equal_steps_samples_with_the_trained_weights(numbers: str, sampled: str) -> None:
    """With the adapter's rank by default; products that are quantised in training are not in sampling."""
    questions = []

    def noted(question: Mapping[str, Any], device: str) -> Any:
        questions.append((question["quantize"], question["adapter_rank"]))
        return infer(question, device)

    study = StudyFile.model_validate(
        {
            "protocol": "equal-steps",
            "experiment": {},
            "steps": 4,
            "configurations": {"rslora": {"method.kind": "rslora", "quantize.denoiser": numbers}},
        }
    )
    forecast = SeriesForecast(
        experiment={"model": "sd3-medium", "data": {"resolution": 512}, "parallel": {"devices": 1}}, on=("l4",)
    )
    forecast_rows(study, forecast, plan, noted)
    assert questions == [(sampled, 16)]


def test_equal_steps_forecasts_denoising_at_its_batch() -> None:
    content = {
        "protocol": "equal-steps",
        "experiment": {},
        "steps": 4,
        "configurations": {"lora": {"method.kind": "lora"}},
    }
    forecast = SeriesForecast(
        experiment={"model": "sd3-medium", "data": {"resolution": 512}, "parallel": {"devices": 1}}, on=("l4",)
    )
    for batch_size, missing in ((8, None), (256, "denoising at batch 256 in fp32: does not fit")):
        study = StudyFile.model_validate({**content, "inference": {"batch_size": batch_size}})
        (found,) = forecast_rows(study, forecast, plan, infer)
        assert found.missing == missing
        assert found.values.get("inference, steps/s") == (None if missing else (4, 2, 8))
        assert "samples/s" in found.values


@pytest.mark.parametrize(
    ("experiment", "is_inference", "text"),
    [
        (
            {"train": {"precision": "bf16"}, "levers": {"gradient_checkpointing": 0.0}},
            False,
            "sd3-medium at 512 px, in bf16, without checkpointing, where a configuration does not change that.",
        ),
        (
            {"levers": {"gradient_checkpointing": 0.5}},
            False,
            "sd3-medium at 512 px, with 50 % of the blocks checkpointed, where a configuration does not change that.",
        ),
        ({"train": {"precision": "bf16"}}, True, "sd3-medium at 512 px, with the precision of each variant."),
    ],
)
def test_the_settings_of_a_forecast_are_stated(experiment: dict[str, Any], is_inference: bool, text: str) -> None:
    whole = {"model": "sd3-medium", "data": {"resolution": 512}, **experiment}
    assert settings_text(whole, is_inference=is_inference) == f"Forecasts are for {text}"
