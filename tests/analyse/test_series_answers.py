"""What a series says of its studies: measured values beside the first configuration, doubts once, forecasts."""

from typing import Any

from foretune.analyse.series_answers import answers_of
from foretune.analyse.study_comparing import BREAK_EVEN, NOT_COMPARED
from foretune.analyse.trace_digest import OperatorTime, Shares, TraceDigest
from foretune.choices.study_series import SeriesPublished


def row(name: str, setting: str = "as-asked", **values: float) -> dict[str, Any]:
    titles = {"rate": "samples/s", "peak": "peak memory, MiB", "psnr": "psnr, dB"}
    numbers: dict[str, Any] = {
        key: {"value": value, "low": None, "high": None, "by_seed": {}} for key, value in values.items()
    }
    found = {titles[key]: number for key, number in numbers.items()}
    return {"configuration": name, "setting": setting, "values": found}


def compared(other: str, title: str, value: float, answer: str = "better", **more: Any) -> dict[str, Any]:
    kind = "ratio" if title == "samples/s" else "difference"
    return {
        "setting": "as-asked", "title": title, "first": "fp32", "other": other, "kind": kind, "value": value,
        "low": None, "high": None, "num_pairs": 3, "answer": answer, **more,
    }  # fmt: skip


def study(rows: list[dict[str, Any]], comparisons: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    axes = [
        {"title": "samples/s", "higher_is_better": True},
        {"title": "peak memory, MiB", "higher_is_better": False},
    ]
    empty: dict[str, Any] = {"findings": [], "curves": []}
    return {"protocol": "speed", "axes": axes, "rows": rows, "comparisons": comparisons, **empty, **more}


def test_speeds_and_memory_beside_the_first_configuration() -> None:
    rows = [row("fp32", rate=10.0, peak=2048.0), row("amp", rate=19.0, peak=1024.0)]
    comparisons = [
        compared("amp", "samples/s", 1.9, low=1.8, high=2.0),
        compared("amp", "peak memory, MiB", -1024.0),
    ]
    assert answers_of(study(rows, comparisons), (), "") == [
        "Compared with fp32, amp trains 1.90 times as fast (1.80 to 2.00).",
        "Peak memory: fp32 2.00 GiB, amp 1.00 GiB.",
    ]


def test_what_is_not_shown_is_said() -> None:
    rows = [row("fp32", rate=10.0), row("amp", rate=10.1)]
    (sentence,) = answers_of(study(rows, [compared("amp", "samples/s", 1.01, "no difference shown")]), (), "")
    assert "[no difference shown]" in sentence
    (sentence,) = answers_of(study(rows, [compared("amp", "samples/s", 1.01, "inconclusive")]), (), "")
    assert "[not decided]" in sentence
    *_, doubt = answers_of(study(rows, [compared("amp", "samples/s", 1.01, "not a claim", num_pairs=1)]), (), "")
    assert doubt == "Measured with one seed: no claim."


def test_what_no_comparison_says_is_said() -> None:
    """A break-even, and why qualities are not compared."""
    why = {"sentence": f"b and a{NOT_COMPARED}b: too few steps."}
    paid = {"sentence": f"b compiles for 9 s at the start{BREAK_EVEN}after 20 steps."}
    told = {"sentence": "b trains 2 times as many samples/s as a."}
    assert answers_of(study([], [], findings=[told, why, paid]), (), "") == [why["sentence"], paid["sentence"]]


def test_of_many_configurations_the_best_is_named() -> None:
    names = [f"batch-{size}" for size in (2, 4, 8, 16, 32)]
    rows = [row("fp32", rate=1.0), *(row(name, rate=1.0) for name in names)]
    comparisons = [compared(name, "samples/s", ratio) for name, ratio in zip(names, (1, 2, 5, 3, 2), strict=True)]
    (sentence,) = answers_of(study(rows, comparisons), (), "")
    assert "batch-8 trains 5" in sentence
    assert "batch-4" not in sentence


def test_a_forecast_names_the_fastest_and_what_does_not_fit() -> None:
    def planned(name: str, rate: float | None, verdict: str) -> dict[str, Any]:
        values = {} if rate is None else {"samples/s": [rate, rate, rate]}
        place = {"device": "l4", "num_devices": num_devices, "setting": "as-asked"}
        return {**place, "configuration": name, "values": values, "verdict": verdict}

    num_devices = 1
    rows = [planned("full", None, "does not fit"), planned("lora", 0.1, "fits"), planned("int8", 0.3, "fits")]
    assert answers_of(study([], []), rows, "sd3-medium") == [
        "Forecast for sd3-medium on l4: int8 is fastest with 0.3 samples/s, 3 times as fast as lora.",
        "Forecast for sd3-medium: full does not fit on l4.",
    ]
    num_devices = 8
    (sentence,) = answers_of(study([], []), [planned("a", 2.0, "fits"), planned("b", 1.0, "fits")], "flux.1-dev")
    assert sentence == ("Forecast for flux.1-dev on 8 x l4: a is fastest with 2 samples/s (0.25 on each of 8 devices).")


def test_a_forecast_is_compared_with_what_was_published_for_each_device() -> None:
    place = {"device": "mi300x", "num_devices": 8, "setting": "bf16", "verdict": "fits"}
    rows = [
        {**place, "configuration": name, "values": {"samples/s": [rate, rate, rate]}}
        for name, rate in (("batch-1", 13.0), ("batch-10", 69.44))
    ]
    published = SeriesPublished(
        by="AMD",
        device="mi300x",
        setting="bf16",
        samples_per_s_per_device={"batch-1": 2.03, "batch-10": 4.34, "x": 1.0},
    )
    assert answers_of(study([], []), rows, "flux.1-dev", published=published)[-1] == (
        "Samples/s of each mi300x. batch-1: forecast 1.62, published by AMD 2.03 (-20 %); "
        "batch-10: forecast 8.68, published by AMD 4.34 (+100 %)."
    )


def test_a_profile_says_where_the_time_goes() -> None:
    digest = TraceDigest(
        device="cpu",
        num_steps=2,
        wall_s=1.0,
        operators=(OperatorTime("aten::mm", 0.3, 0.3, 4),),
        phases_s={"forward": 0.3, "backward": 0.6, "other": 0.1},
        modules=(),
        shares=Shares(input=0.0, launch=0.0, idle=0.0, copy=0.0),
        memory=None,
        left_out=None,
    )
    (sentence,) = answers_of(study([], []), (), "", {"lora": digest})
    assert sentence == "lora: of a step, backward 60%, forward 30%, other 10%; the longest operator is mm with 30%."
