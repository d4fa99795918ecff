"""Ways to sample from one model: what they are asked for, and how they compare with the first."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from foretune.analyse.inference_study import IMAGE_STEPS, inference_study
from foretune.api.bench import compare_inference, variants_named
from foretune.choices.inference import VariantChoices
from foretune.core.errors import Refused, UnknownName, UserError
from foretune.core.observer import Observer
from foretune.measure import inference_variants
from foretune.measure.bench_request import InferenceRequest
from foretune.measure.fresh_process import MeasurementFailed
from foretune.measure.inference_variants import (
    InferenceVariant,
    MeasuredVariant,
    measure_variants,
    variant_of,
)


def test_variants_on_the_command_line() -> None:
    assert variants_named(["plain:", "fast:precision=bf16,compile=regional,batch=4,merge=true"]) == {
        "plain": {},
        "fast": {"precision": "bf16", "compile": "regional", "batch": 4, "merge": True},
    }
    assert variants_named(["off:compile=off"]) == {"off": {"compile": "off"}}, "YAML would read false"
    assert variants_named(["plain"]) == {"plain": {}}
    for wrong in (["a:precision"], ["a:", "a:"], [":precision=bf16"]):
        with pytest.raises(UserError, match="is not a variant with a name of its own"):
            variants_named(wrong)


def test_a_variant_has_known_settings() -> None:
    assert variant_of("a", {"devices": 2, "batch": 4}) == InferenceVariant(devices=2, batch_size=4)
    assert variant_of("a", {"quantize": "int8"}) == InferenceVariant(quantize="int8")
    with pytest.raises(UnknownName, match="precison"):
        variant_of("a", {"precison": "bf16"})
    with pytest.raises(UnknownName, match="int3"):
        variant_of("a", {"quantize": "int3"})
    with pytest.raises(UserError, match="'four' is not a number of images"):
        variant_of("a", {"batch": "four"})
    with pytest.raises(Refused, match="cannot be merged into quantised weights"):
        variant_of("a", {"quantize": "int8", "merge": True, "adapter": "here"})


def measured(name: str, step_s: float, *, start_s: float = 0.0, **variant: Any) -> MeasuredVariant:
    """Three repeats of 12 steps, the first of which takes longer."""
    answers = tuple(
        {
            "times_s": [start_s + step_s, *[step_s * (1 + 0.001 * ((step + repeat) % 3)) for step in range(11)]],
            "peak_device_bytes": None,
            "peak_host_bytes": 2**30,
        }
        for repeat in range(3)
    )
    return MeasuredVariant(
        name=name, variant=InferenceVariant(**variant), denoising=answers, imaging=(), images=None, problem=None
    )


def test_a_compiled_variant_has_a_break_even() -> None:
    plain, compiled = measured("plain", 0.1), measured("compiled", 0.05, start_s=10.0, compile="regional")
    study = inference_study("ways", (plain, compiled), VariantChoices(steps=12), {})
    (finding,) = study["findings"]
    # 10 s of compiling are paid by 0.05 s a step.
    assert finding["sentence"].startswith("compiled compiles for 10.0 s at the start; break-even: after ")
    steps = int(finding["sentence"].split("after ")[1].split()[0].replace(",", ""))
    assert steps == pytest.approx(200, rel=0.05)
    (compared,) = study["comparisons"]
    assert compared["value"] == pytest.approx(2, rel=0.01)
    assert compared["answer"] == "better"


def test_a_larger_batch_is_compared_by_images() -> None:
    plain, batch = measured("plain", 0.1), measured("batch-4", 0.2, batch_size=4)
    study = inference_study("ways", (plain, batch), VariantChoices(steps=12), {"batch-4": {"psnr": 40.0}})
    values = study["rows"][1]["values"]
    assert values[IMAGE_STEPS]["value"] == pytest.approx(20, rel=0.01)
    assert values["inference, steps/s"]["value"] == pytest.approx(5, rel=0.01)
    assert values["psnr to plain, dB"]["value"] == 40.0
    assert study["comparisons"][0]["value"] == pytest.approx(2, rel=0.01)


def test_what_failed_is_a_warning() -> None:
    failed = MeasuredVariant(
        name="int8", variant=InferenceVariant(), denoising=(), imaging=(), images=None, problem="out of memory"
    )
    study = inference_study("ways", (measured("plain", 0.1), failed), VariantChoices(), {})
    assert study["warnings"] == ["int8: out of memory"]
    assert study["rows"][1]["values"] == {}
    assert study["comparisons"] == []


def test_what_was_measured_is_kept_also_where_the_folder_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another setting is refused, and images that were lost are made again."""
    num_asked = []

    def ask(request: InferenceRequest, _: Observer) -> dict[str, Any]:
        num_asked.append(request)
        if request.images_file is not None:
            Path(request.images_file).write_bytes(b"images")
        return {"times_s": [0.1] * request.num_steps, "peak_device_bytes": 1, "peak_host_bytes": 1}

    monkeypatch.setattr(inference_variants, "ask_fresh_process", ask)
    limits = iter(range(1000))
    monkeypatch.setattr(inference_variants, "memory_limit_bytes", lambda: next(limits))
    choices, variants = VariantChoices(steps=3, repeat=2, images=1), {"plain": InferenceVariant()}
    first = measure_variants("model", variants, choices, tmp_path / "here", Observer())
    assert len(num_asked) == 3, "two repeats of denoising, and images"
    (tmp_path / "here").rename(tmp_path / "there")
    again = measure_variants("model", variants, choices, tmp_path / "there", Observer())
    assert len(num_asked) == 3
    assert again[0].denoising == first[0].denoising
    (tmp_path / "there/plain" / inference_variants.IMAGES_FILE).unlink()
    measure_variants("model", variants, choices, tmp_path / "there", Observer())
    assert [request.num_images for request in num_asked[3:]] == [1]
    with pytest.raises(UserError, match="was measured with other settings"):
        measure_variants("model", {"plain": InferenceVariant(batch_size=2)}, choices, tmp_path / "there", Observer())


def test_what_was_measured_of_another_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what was measured before the content was stored."""
    answer = {"times_s": [0.1], "peak_device_bytes": 1, "peak_host_bytes": 1}
    monkeypatch.setattr(inference_variants, "ask_fresh_process", lambda *_: answer)
    choices, variants = VariantChoices(steps=3, repeat=1, images=0), {"plain": InferenceVariant()}

    def measure(step: int) -> None:
        measure_variants("run", variants, choices, tmp_path, Observer(), {"plain": {"run": "r", "step": step}})

    measure(4)
    monkeypatch.setattr(inference_variants, "ask_fresh_process", None)
    measure(4)
    with pytest.raises(UserError, match="plain was measured before the model or its adapter changed"):
        measure(8)
    file = tmp_path / "plain" / "denoising-0.json"
    stored = json.loads(file.read_text())
    del stored["request"]["content"]
    file.write_text(json.dumps(stored))
    with pytest.raises(UserError, match="plain was measured before the model or its adapter changed"):
        measure(4)


def failing(monkeypatch: pytest.MonkeyPatch, failures: dict[str, str]) -> None:
    """Measures at once; a variant of this precision fails with this status."""

    def ask(request: InferenceRequest, _: Observer) -> dict[str, Any]:
        if request.precision in failures:
            raise MeasurementFailed(failures[request.precision], "that is why")
        return {"times_s": [0.1], "peak_device_bytes": 1, "peak_host_bytes": 1}

    monkeypatch.setattr(inference_variants, "ask_fresh_process", ask)


VARIANTS = {"plain": InferenceVariant(), "half": InferenceVariant(precision="bf16")}
CHOICES = VariantChoices(steps=3, repeat=2, images=0)


def test_a_comparison_goes_on_without_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, {"bf16": "out of memory"})
    plain, half = measure_variants("m", VARIANTS, CHOICES, tmp_path, Observer())
    assert (len(plain.denoising), plain.problem) == (2, None)
    assert (half.denoising, half.problem) == ((), "Out of memory while measuring: that is why")


def test_a_refused_variant_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, {"bf16": "refused"})
    with pytest.raises(MeasurementFailed, match="half: that is why") as raised:
        measure_variants("m", VARIANTS, CHOICES, tmp_path, Observer())
    assert raised.value.exit_code == 2


def test_without_the_first_there_is_no_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, {"fp32": "out of memory"})
    with pytest.raises(MeasurementFailed, match="Out of memory while measuring: plain: that is why") as raised:
        measure_variants("m", VARIANTS, CHOICES, tmp_path, Observer())
    assert raised.value.exit_code == 1


def test_repeats_from_different_environments_are_a_warning() -> None:
    def with_cores(name: str, num_cores: int, **variant: Any) -> MeasuredVariant:
        one = measured(name, 0.1, **variant)
        answers = [{**answer, "environment": {"cores": num_cores, "source": name}} for answer in one.denoising]
        return dataclasses.replace(one, denoising=tuple(answers))

    plain, other = with_cores("plain", 2), with_cores("other", 4)
    study = inference_study("ways", (plain, other), VariantChoices(), {})
    assert study["warnings"] == [
        "Repeats of plain and other are from different environments: cores: 2 against 4",
    ]
    several = with_cores("several", 1, devices=2)
    assert inference_study("ways", (plain, several), VariantChoices(), {})["warnings"] == []


def test_speeds_of_several_devices_are_those_of_all() -> None:
    plain, two = measured("plain", 0.1), measured("two", 0.1, devices=2)
    imaging = ({"times_s": [9.0, 4.0, 4.0]},)
    study = inference_study("ways", (plain, dataclasses.replace(two, imaging=imaging)), VariantChoices(steps=12), {})
    assert study["held_equal"].endswith("Speeds are those of all devices, memory that of one.")
    values = study["rows"][1]["values"]
    assert values[IMAGE_STEPS]["value"] == pytest.approx(20, rel=0.01)
    assert values["inference, steps/s"]["value"] == pytest.approx(20, rel=0.01)
    assert values["images/s"]["value"] == pytest.approx(0.5)
    assert values["time of an image, s"]["value"] == pytest.approx(4.0)
    assert study["comparisons"][0]["value"] == pytest.approx(2, rel=0.01)
    assert study["variants"]["two"]["devices"] == 2


def test_a_key_given_twice_and_names_with_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gives batch twice"):
        variants_named(["fast:batch=2,batch=4"])
    with pytest.raises(UserError, match=r"'\.\./up' cannot name a variant"):
        compare_inference("foretune-shapes", {"../up": {}}, folder=tmp_path)
