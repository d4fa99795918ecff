"""The answer of a whole series: up to three sentences, ties named, and no claim from fewer than three seeds."""

from typing import Any

import pytest

from foretune.analyse.series_conclusion import ConcludedPart, conclusion

AXES = {
    "training, samples/s": True,
    "psnr, dB": True,
    "ssim": True,
    "peak memory, MiB": False,
    "cost of 1,000 samples, $": False,
}


def study(values: dict[str, dict[str, float]], answers: dict[str, str], **more: Any) -> dict[str, Any]:
    """Values by title and configuration; how all others compare with the first one, by title."""
    names = list(next(iter(values.values())))
    rows = [
        {
            "configuration": name,
            "setting": "as-asked",
            "values": {title: {"value": numbers[name]} for title, numbers in values.items()},
        }
        for name in names
    ]
    num_pairs = more.pop("num_pairs", 3)
    comparisons = [
        {
            "setting": "as-asked", "title": title, "first": names[0], "other": other, "num_pairs": num_pairs,
            "value": numbers[other] / numbers[names[0]], "low": None, "high": None,
            "answer": "not a claim" if num_pairs < 3 else answers[title],
        }
        for title, numbers in values.items()
        for other in names[1:]
    ]  # fmt: skip
    axes = [{"title": title, "higher_is_better": higher} for title, higher in AXES.items()]
    shared: dict[str, Any] = {"protocol": "equal-steps", "axes": axes, "findings": []}
    return {**shared, "rows": rows, "comparisons": comparisons, **more}


def concluded(*studies: dict[str, Any], forecasts: tuple[dict[str, Any], ...] = ()) -> tuple[str, ...]:
    return conclusion([ConcludedPart(study=one, forecasts=forecasts, model="flux.1-schnell") for one in studies])


def test_speed_quality_and_cost_are_a_sentence_each() -> None:
    quality = study(
        {"psnr, dB": {"one": 20.0, "two": 20.1}, "ssim": {"one": 0.8, "two": 0.8}},
        {"psnr, dB": "no difference shown", "ssim": "no difference shown"},
        protocol="equal-time",
    )
    speed = study(
        {
            "training, samples/s": {"one": 10.0, "two": 18.0},
            "peak memory, MiB": {"one": 1000.0, "two": 600.0},
            "cost of 1,000 samples, $": {"one": 1.0, "two": 1.5},
        },
        {"training, samples/s": "better", "peak memory, MiB": "better", "cost of 1,000 samples, $": "worse"},
    )
    assert concluded(quality, speed) == (
        "Speed: two trains 1.8 times as fast as one.",
        (
            "Quality and memory: PSNR and SSIM: no difference shown between one and two; "
            "peak memory: two needs 40 % less than one."
        ),
        "Cost: 1,000 samples cost $1.0 on one and $1.5 on two; take two for time, one for money.",
    )


@pytest.mark.parametrize(("num_pairs", "said"), [(1, "one seed"), (2, "2 seeds")])
def test_nothing_is_claimed_from_fewer_than_three_seeds(num_pairs: int, said: str) -> None:
    speed = study(
        {"training, samples/s": {"one": 10.0, "two": 18.0}, "cost of 1,000 samples, $": {"one": 1.0, "two": 0.9}}, {},
        num_pairs=num_pairs,
    )  # fmt: skip
    assert concluded(speed) == (
        f"Speed ({said}, no claim): two trained fastest, 1.8 times as fast as one.",
        (
            f"Cost ({said}, no claim): 1,000 samples cost $0.90 on two and $1.0 on one; "
            "two has the best averages in speed and cost."
        ),
    )
    shown = study({"training, samples/s": {"one": 10.0, "two": 20.0}}, {"training, samples/s": "better"})
    assert concluded(speed, shown)[0] == (
        f"Speed: two trained fastest, 1.8 times as fast as one ({said}, no claim); two trains 2.0 times as fast as one."
    )


def test_close_means_are_a_tie() -> None:
    (speed,) = concluded(study({"training, samples/s": {"one": 10.0, "two": 10.2, "three": 5.0}}, {}, num_pairs=1))
    assert speed == "Speed (one seed, no claim): one and two ahead, within 3 % of each other."


def test_what_is_not_decided_is_said() -> None:
    numbers = {"training, samples/s": {"one": 10.0, "two": 12.0}, "cost of 1,000 samples, $": {"one": 1.0, "two": 1.6}}
    speed, cost = concluded(study(numbers, dict.fromkeys(numbers, "inconclusive")))
    assert speed == "Speed: whether one or two trains fastest is not decided."
    assert cost.endswith(
        "; two has the best average speed, one the lowest average cost, but the intervals do not confirm it."
    )
    three = study({"training, samples/s": {"a": 10.0, "b": 12.0, "c": 10.0}}, {"training, samples/s": "inconclusive"})
    three["comparisons"][1]["answer"] = "no difference shown"
    assert concluded(three) == ("Speed: whether a or b trains fastest is not decided; c is as fast as a.",)


def test_settings_with_other_outcomes_are_named() -> None:
    alike, other = (
        study({"training, samples/s": {"one": 10.0, "two": 20.0}}, {"training, samples/s": answer})
        for answer in ("better", "worse")
    )
    for part, setting in ((alike, "small"), (other, "large")):
        for row in (*part["rows"], *part["comparisons"]):
            row["setting"] = setting
    merged = {**alike, **{key: [*alike[key], *other[key]] for key in ("rows", "comparisons")}}
    assert concluded(merged) == ("Speed: two trains 2.0 times as fast as one (small), one trains fastest (large).",)


def test_forecasts_name_the_fastest_and_the_cheapest() -> None:
    def planned(device: str, num: int, rate: float, usd_per_hour: float | None) -> dict[str, Any]:
        place = {"device": device, "num_devices": num, "configuration": "lora", "setting": "as-asked"}
        return {**place, "verdict": "fits", "usd_per_hour": usd_per_hour, "values": {"samples/s": [rate, rate, rate]}}

    rows = (planned("h100", 4, 20.0, 12.0), planned("l4", 1, 1.0, 0.36), planned("own-cpu", 1, 50.0, None))
    assert concluded(study({"ssim": {"one": 1.0}}, {}), forecasts=rows) == (
        (
            "Cost: forecast for flux.1-schnell: lora on 4 x h100 is fastest with 20 samples/s (5 on each of 4 "
            "devices) at $0.17 for 1,000 samples, lora on l4 is cheapest with 1 samples/s at $0.10 for 1,000 samples."
        ),
    )
    assert concluded(study({"ssim": {"one": 1.0}}, {}), forecasts=rows[:1])[0].endswith("and none is cheaper.")


def test_where_nothing_has_finished_there_is_no_answer() -> None:
    nothing: dict[str, Any] = {"protocol": "speed", "rows": [], "comparisons": [], "axes": [], "findings": []}
    assert concluded(nothing) == ("No answer: no two configurations have finished.",)


def test_forecasts_that_do_not_fit_are_named_once_for_each_device() -> None:
    def row(configuration: str, device: str, verdict: str) -> dict[str, Any]:
        names = {"configuration": configuration, "device": device, "setting": "", "num_devices": 1}
        return {**names, "verdict": verdict, "values": {}, "usd_per_hour": None}

    forecasts = (row("full", "l4", "does not fit"), row("lora", "l4", "fits"), row("full", "h100-sxm", "fits"))
    quality = study({"psnr, dB": {"one": 20.0, "two": 20.1}}, {"psnr, dB": "no difference shown"})
    (sentence,) = concluded(quality, quality, forecasts=forecasts)
    assert sentence.endswith("; forecast for flux.1-schnell: full does not fit on l4.")
    assert sentence.count("does not fit") == 1


NUMBERS = {
    "training, samples/s": {"one": 10.0, "two": 18.0, "three": 17.8},
    "cost of 1,000 samples, $": {"one": 0.002, "two": 0.0011, "three": 0.00112},
}


@pytest.mark.parametrize(
    ("speeds", "costs", "advice"),
    [
        (((1.75, 1.85), (1.73, 1.83)), ((-1e-3, -8e-4), (-1e-3, -8e-4)), "two and three have the best averages in"),
        (((1.79, 1.81), (1.77, 1.78)), ((-1e-3, -9e-4), (-8.9e-4, -8e-4)), "take two for time and money."),
    ],
)
def test_the_best_is_held_against_the_runner_up(
    speeds: tuple[tuple[float, float], ...], costs: tuple[tuple[float, float], ...], advice: str
) -> None:
    """Both others are better than the first one; that says nothing of the two."""
    found = study(NUMBERS, dict.fromkeys(NUMBERS, "better"))
    for one, (low, high) in zip(found["comparisons"], [*speeds, *costs], strict=True):
        one.update(low=low, high=high)
    *_, cost = concluded(found)
    assert cost.startswith("Cost: 1,000,000 samples cost $1.1 on two and $2.0 on one; ")
    assert advice in cost
    assert ("the intervals do not confirm it" in cost) == ("averages" in advice)


def test_a_first_configuration_without_a_price_has_no_comparison_of_costs() -> None:
    found = study(NUMBERS, dict.fromkeys(NUMBERS, "better"))
    found["comparisons"] = [one for one in found["comparisons"] if "cost" not in one["title"]]
    for row in found["rows"]:
        row["values"]["cost of 1,000 samples, $"]["by_seed"] = {"0": 1.0, "1": 1.0, "2": 1.0}
    del found["rows"][0]["values"]["cost of 1,000 samples, $"]
    *_, cost = concluded(found)
    assert cost.endswith("two and three have the best averages in speed and cost, but the intervals do not confirm it.")


@pytest.mark.parametrize(("num_images", "doubt"), [(8, ""), (1, " (one image, no claim)")])
def test_inference_rests_on_repeats_and_its_likeness_on_images(num_images: int, doubt: str) -> None:
    inference = study(
        {"image-steps/s": {"plain": 1.0, "int8": 2.0}, "psnr to plain, dB": {"plain": 99.0, "int8": 23.4}}, {},
        num_pairs=2, protocol="inference", num_images=num_images,
    )  # fmt: skip
    inference["comparisons"] = inference["comparisons"][:1]
    del inference["rows"][0]["values"]["psnr to plain, dB"]
    speed, quality = concluded(inference)
    assert speed.startswith("Speed (2 repeats, no claim): ")
    assert quality == f"Quality and memory{doubt}: images of int8 are least like those of plain, PSNR 23.4 dB."
