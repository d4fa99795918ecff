"""Ways to sample from one model beside the first of them, in the form of a study: rows, comparisons, findings."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from foretune.analyse.environments import environment_differences, named
from foretune.analyse.ranking import FEWEST_RUNS
from foretune.analyse.study_cells import INFERENCE_SPEED, PEAK_MEMORY, START, Number
from foretune.analyse.study_comparing import answer_of, break_even_sentence
from foretune.choices.inference import VariantChoices
from foretune.config.study_files import ONLY_SETTING
from foretune.core.units import MIB
from foretune.measure.inference_variants import MeasuredVariant
from foretune.stats.break_even import start_s
from foretune.stats.deciding import SMALLEST_DIFFERENCE, decide
from foretune.stats.intervals import summarise_run

IMAGE_STEPS = "image-steps/s"
IMAGE_SPEED = "images/s"
IMAGE_TIME = "time of an image, s"
_CONFIDENCE = 0.95


def inference_study(
    name: str,
    measured: Sequence[MeasuredVariant],
    choices: VariantChoices,
    likeness: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """The comparison as the content of a study.json.

    `likeness`: of each variant's images to those of the first, by metric.
    """
    first, *others = measured
    confidence = 1 - (1 - _CONFIDENCE) / max(1, len(others))
    axes = (
        (IMAGE_STEPS, True),
        (INFERENCE_SPEED, None),
        (PEAK_MEMORY, False),
        (START, None),
        (IMAGE_SPEED, None),
        (IMAGE_TIME, None),
    )
    return {
        "format": "InferenceStudy",
        "format_version": 1,
        "name": name,
        "protocol": "inference",
        "held_equal": _held_equal(choices, measured),
        "num_images": choices.images,
        "axes": [
            {"title": title, "higher_is_better": better, "is_answer": better is not None} for title, better in axes
        ],
        "rows": [_row(one, first, likeness.get(one.name, {})) for one in measured],
        "comparisons": [_compared(first, other, confidence) for other in others if other.denoising and first.denoising],
        "findings": [{"sentence": sentence} for sentence in _findings(first, others)],
        "curves": [],
        "warnings": [
            *(f"{one.name}: {one.problem}" for one in measured if one.problem is not None),
            *_environment_warnings(measured),
        ],
        "variants": {one.name: asdict(one.variant) for one in measured},
    }


def _held_equal(choices: VariantChoices, measured: Sequence[MeasuredVariant]) -> str:
    repeats = "a fresh process" if choices.repeat == 1 else f"{choices.repeat} fresh processes, in turns"
    images = f" {choices.images} images from the same seeds, {choices.inference_steps} steps each." * bool(
        choices.images
    )
    several = any(one.variant.devices > 1 for one in measured)
    devices = " Speeds are those of all devices, memory that of one." * several
    return f"{choices.steps} denoising steps of random latents in {repeats}.{images}{devices}"


def _environment_warnings(measured: Sequence[MeasuredVariant]) -> Iterator[str]:
    """Repeats from different environments. Several processes share the threads, so like is held against like."""
    first_of: dict[int, tuple[str, Mapping[str, Any]]] = {}
    for one in measured:
        for answer in (*one.denoising, *one.imaging):
            environment = answer.get("environment", {})
            first_name, first = first_of.setdefault(one.variant.devices, (one.name, environment))
            unlike = environment_differences(first, environment)
            if unlike:
                yield f"Repeats of {first_name} and {one.name} are from different environments: {named(unlike)}"
                return


def _row(one: MeasuredVariant, first: MeasuredVariant, likeness: Mapping[str, float]) -> dict[str, Any]:
    numbers = {title: Number.of(dict(enumerate(values))) for title, values in _values(one)}
    for metric, value in likeness.items():
        numbers[f"{metric} to {first.name}{', dB' if metric == 'psnr' else ''}"] = Number.of({0: value})
    return {
        "configuration": one.name,
        "setting": ONLY_SETTING,
        "values": {
            title: {"value": number.value, "low": number.low, "high": number.high, "by_seed": dict(number.by_seed)}
            for title, number in numbers.items()
            if number is not None
        },
    }


def _values(one: MeasuredVariant) -> Iterator[tuple[str, list[float]]]:
    """Numbers of each repeat, by the title of their axis."""
    rates = _rates(one)
    yield IMAGE_STEPS, rates
    yield INFERENCE_SPEED, [rate / one.variant.batch_size for rate in rates]
    peaks = [answer["peak_device_bytes"] or answer["peak_host_bytes"] for answer in one.denoising]
    yield PEAK_MEMORY, [peak / MIB for peak in peaks]
    yield START, [start_s(times_s) for times_s in one.step_times_s]
    # Where there are several images, the first one warms up.
    image_times_s = [statistics.fmean(answer["times_s"][1:] or answer["times_s"]) for answer in one.imaging]
    if one.variant.devices > 1:
        yield IMAGE_SPEED, [one.variant.devices / time_s for time_s in image_times_s]
    yield IMAGE_TIME, image_times_s


def _rates(one: MeasuredVariant) -> list[float]:
    """Image-steps/s of each repeat on all devices, after its warm-up: all steps over all of their time."""
    images = one.variant.batch_size * one.variant.devices
    return [images / summarise_run(times_s, "mean").value for times_s in one.step_times_s]


def _compared(first: MeasuredVariant, other: MeasuredVariant, confidence: float) -> dict[str, Any]:
    """Speeds of the same repeat beside each other."""
    pairs = list(zip(_rates(first), _rates(other), strict=False))
    a, b = ([pair[side] for pair in pairs] for side in (0, 1))
    decided = decide(a, b, is_paired=True, confidence=confidence)
    low, high = (decided.low, decided.high) if len(pairs) >= FEWEST_RUNS else (None, None)
    edges = (1 / (1 + SMALLEST_DIFFERENCE), 1 + SMALLEST_DIFFERENCE)
    return {
        "setting": ONLY_SETTING,
        "title": IMAGE_STEPS,
        "first": first.name,
        "other": other.name,
        "kind": "ratio",
        "value": statistics.fmean(b) / statistics.fmean(a) if decided.ratio is None else decided.ratio,
        "low": low,
        "high": high,
        "confidence": confidence,
        "num_pairs": len(pairs),
        "answer": answer_of(low, high, 1.0, edges, len(pairs), higher_is_better=True),
    }


def _findings(first: MeasuredVariant, others: Sequence[MeasuredVariant]) -> Iterator[str]:
    for one in others:
        found = one.break_even(first)
        if found is not None:
            yield break_even_sentence(one.name, found, "denoising steps")
