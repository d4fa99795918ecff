"""Loss curves that lie on each other."""

import itertools
from typing import Any

import pytest

from foretune.reports.curve_plots import draw_curves

pytest.importorskip("matplotlib")


def curve(label: str, last: float, kind: str = "training") -> dict[str, Any]:
    points = [
        {"step": step, "value": value, "low": None, "high": None, "raw": value + 0.1}
        for step, value in ((1, 1.0), (100, last))
    ]
    smoothing = {"num_steps_per_point": 1, "num_smoothed_steps": 15}
    return {"label": label, "kind": kind, "points": points, **smoothing}


def test_runs_with_equal_losses_differ_in_dashes_and_are_named_apart() -> None:
    labels = ["fp32, low", "fp32, high", "bf16, low", "bf16, high", "fp16, low", "fp16, high"]
    curves = [curve(label, 0.9 if "low" in label else 0.4) for label in labels]
    (panel,) = draw_curves({"curves": curves, "convergence": []}, "losses").axes
    drawn = [line for line in panel.lines if line.get_alpha() is None and list(line.get_xdata()) == [1, 100]]
    assert len(drawn) == len(labels)
    for last in (0.9, 0.4):
        looks = {str(line._unscaled_dash_pattern) for line in drawn if line.get_ydata()[-1] == last}
        assert len(looks) == 3, "curves that lie on each other have dashes of their own"
    places = sorted(text.get_position()[1] for text in panel.texts)
    assert [text.get_text() for text in panel.texts if text.get_text() in labels]
    assert min(b - a for a, b in itertools.pairwise(places)) > 0.06
    faint = [line for line in panel.lines if line.get_alpha() is not None]
    assert [line.get_ydata()[-1] for line in faint] == pytest.approx([1.0, 0.5] * 3), "the raw loss behind each"


def test_caption_and_key_state_the_smoothing() -> None:
    figure = draw_curves({"curves": [curve("a", 0.5)], "convergence": []}, "losses")
    (panel,) = figure.axes
    assert panel.get_title(loc="left") == "exponential moving average over 15 steps; faint: the loss of each step"
    (key,) = figure.legends
    assert [text.get_text() for text in key.get_texts()] == ["smoothed over 15 steps (training loss)", "not smoothed"]


def test_a_file_of_an_earlier_release_is_drawn_as_it_is() -> None:
    old = {"label": "a", "kind": "held-out", "points": [{"step": 1, "value": 1.0, "low": None, "high": None}]}
    figure = draw_curves({"curves": [old], "convergence": []}, "losses")
    assert figure.axes[0].get_title(loc="left") == "not smoothed"
    assert not figure.legends
