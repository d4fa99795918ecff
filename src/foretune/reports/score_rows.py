"""The scores of an evaluation as cells of a table, for terminals and model cards alike."""

import math
from collections.abc import Mapping
from typing import Any

from foretune.core.units import counted_text, rate_text, share_text
from foretune.core.values import Evaluation, Score

_SMALLEST_SHOWN = 1e-12


def score_headings(evaluation: Evaluation) -> tuple[str, ...]:
    """Base and differences have columns where there is a base."""
    if evaluation.base is None:
        return ("metric", "run", "its 95 % interval", "repeats")
    confidence = evaluation.differences[0].confidence if evaluation.differences else 0.95
    compared = ("difference", f"{share_text(confidence)} interval", "answer")
    return ("metric", "base", "run", "its 95 % interval", *compared, "repeats")


def score_rows(evaluation: Evaluation) -> list[tuple[str, ...]]:
    """A row for each metric of the run that has a value, and one for speed."""
    has_base = evaluation.base is not None
    present = [score for score in evaluation.scores if score.column == "run" and score.why_absent is None]
    speeds = [evaluation.base_images_per_s] if has_base else []
    cells = [
        "-" if speed is None else rate_text(speed, _thing(evaluation)) for speed in (*speeds, evaluation.images_per_s)
    ]
    empty = [""] * (len(score_headings(evaluation)) - 2 - len(cells))
    return [
        *(_row(evaluation, score, has_base=has_base) for score in present),
        ("speed", *cells, *empty, "measured once"),
    ]


def _row(evaluation: Evaluation, score: Score, *, has_base: bool) -> tuple[str, ...]:
    base = evaluation.score(score.metric, "base")
    digits = _digits(score.low, score.high)
    unit = f" {score.unit}" if score.unit else ""
    arrow = {True: " (higher is better)", False: " (lower is better)", None: ""}[score.higher_is_better]
    cells = [score.metric + arrow]
    if has_base:
        cells.append("-" if base is None or base.value is None else f"{base.value:.{digits}f}{unit}")
    cells += [
        "-" if score.value is None else f"{score.value:.{digits}f}{unit}",
        _interval(score.low, score.high, digits),
    ]
    if has_base:
        difference = evaluation.difference(score.metric)
        if difference is None or difference.difference is None:
            cells += ["", "", ""]
        else:
            digits = _digits(difference.low, difference.high)
            cells += [
                f"{difference.difference:+.{digits}f}",
                _interval(difference.low, difference.high, digits),
                difference.answer,
            ]
    return (*cells, counted_text(score.num_values, score.repeats_over) if score.num_values else score.repeats_over)


def _interval(low: float | None, high: float | None, digits: int) -> str:
    return "" if low is None or high is None else f"{low:.{digits}f} to {high:.{digits}f}"


def _digits(low: float | None, high: float | None) -> int:
    """As many as the interval leaves meaning: its half width to two significant digits."""
    if low is None or high is None:
        return 3
    reach = (high - low) / 2
    if reach < _SMALLEST_SHOWN:
        return 3
    return min(max(1 - math.floor(math.log10(reach)), 0), 6)


def settings_text(evaluation: Evaluation) -> str:
    """What was sampled to measure it."""
    settings = evaluation.settings
    prompts = settings["prompts"]
    # A model that takes no text has been asked for samples alone.
    asked = counted_text(len(prompts), "prompts" if any(prompts) else "groups of samples")
    num_frames = settings.get("num_frames")
    held_out = counted_text(settings["held_out_images"], f"held-out {_thing(evaluation)}s")
    frames = "" if num_frames is None else f", {counted_text(num_frames, 'frames')}"
    return (
        f"{asked} x {counted_text(len(settings['seeds']), 'seeds')}, {counted_text(settings['steps'], 'steps')}, "
        f"{settings['size_px']} px{frames}; {held_out}{_form_text(settings)}"
    )


def _form_text(settings: Mapping[str, Any]) -> str:
    """How it was sampled, where that is not as usual."""
    parts = ["compiled blocks"] * ("compile" in settings) + ["merged adapter"] * ("merge" in settings)
    parts += [f"batch {settings['batch_size']}"] if "batch_size" in settings else []
    parts += [f"{settings['devices']} devices"] if "devices" in settings else []
    return f"; {', '.join(parts)}" if parts else ""


def _thing(evaluation: Evaluation) -> str:
    """What was sampled; evaluations of earlier releases were all of images."""
    return "image" if evaluation.settings.get("num_frames") is None else "clip"


def band_lines(evaluation: Evaluation) -> list[str]:
    """Scores in parts: the base's and the run's."""
    lines = []
    for score in evaluation.scores:
        if score.column != "run" or not score.bands:
            continue
        base = evaluation.score(score.metric, "base")
        before = {} if base is None or base.bands is None else base.bands
        parts = [
            f"{name}: {before[name]:.3g} -> {value:.3g}"
            if name in before and before[name] != value
            else f"{name}: {value:.3g}"
            for name, value in score.bands.items()
        ]
        lines.append(f"{score.metric}: {'; '.join(parts)}")
    return lines
