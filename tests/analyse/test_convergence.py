"""Curves with bands over seeds, and when more steps no longer showed."""

import random
from pathlib import Path

import pytest

from foretune.analyse.convergence import convergence, convergence_finding, curves, moving_average
from foretune.analyse.run_data import RunData, read_run
from foretune.analyse.study_summary import summarise_study
from tests.analyse.made_studies import make_part

NUM_STEPS = 240


def made(studies: Path, name: str, seed: int, *, is_flat: bool, place: int = 0) -> RunData:
    """Falls all the way, or to its level within the first few steps."""
    chance = random.Random(10 * seed + place)
    losses = [(1 if is_flat else 1 - 0.5 * step / NUM_STEPS) + chance.gauss(0, 0.01) for step in range(NUM_STEPS)]
    held_out = {step: losses[max(0, step - 1)] for step in range(0, NUM_STEPS + 1, 10)}
    path = make_part(
        studies,
        name,
        seed,
        protocol="convergence",
        order=(0, place),
        num_steps=NUM_STEPS,
        losses=losses,
        held_out=held_out,
    )
    return read_run(path)


def test_curves_have_bands_over_seeds_and_one_run_has_none(tmp_path: Path) -> None:
    runs = [made(tmp_path, "falling", seed, is_flat=False) for seed in range(3)]
    held_out, training = curves({"falling": runs})
    assert (held_out.kind, training.kind) == ("held-out", "training")
    assert [point.step for point in held_out.points] == list(range(0, NUM_STEPS + 1, 10))
    point = held_out.points[5]
    assert point.low is not None
    assert point.high is not None
    assert point.low < point.value < point.high
    assert point.value == pytest.approx(sum(dict(run.held_out_losses)[50] for run in runs) / 3)
    assert (training.num_steps_per_point, training.num_smoothed_steps) == (2, 12)
    assert training.points[0].raw == pytest.approx(sum(sum(run.losses[:2]) for run in runs) / 6)
    averages = [moving_average(run.losses, 12)[5] for run in runs]
    assert training.points[2].value == pytest.approx(sum(averages) / 3)
    assert {point.raw for point in held_out.points} == {None}, "its noise is fixed: it is not smoothed"
    alone, _ = curves({"one": runs[:1]})
    assert all(point.low is None and point.num_runs == 1 for point in alone.points)
    assert curves({"none": []}) == ()


def test_a_moving_average_has_no_bias_at_its_start_and_follows_by_its_reach() -> None:
    assert moving_average([5.0, 5.0, 5.0], 4) == pytest.approx([5.0, 5.0, 5.0])
    # The weights of a new value and of the one before it are 1/2 and 1/4.
    assert moving_average([0.0, 1.0], 2) == pytest.approx([0.0, 0.5 / 0.75])
    assert moving_average([2.0, 7.0], 1) == [2.0, 7.0]


def test_a_falling_curve_goes_on_and_a_flat_one_is_stopped(tmp_path: Path) -> None:
    falling = [made(tmp_path, "falling", seed, is_flat=False) for seed in range(3)]
    flat = [made(tmp_path, "flat", seed, is_flat=True, place=1) for seed in range(3)]
    on = convergence("falling", falling)
    assert (on.kind, on.settled_at_step, on.num_steps) == ("held-out", None, NUM_STEPS)
    assert "still falling after 240 steps: more would show" in convergence_finding(on).sentence
    off = convergence("flat", flat)
    assert off.settled_at_step is not None
    assert f"after {off.settled_at_step} steps more of them no longer showed" in convergence_finding(off).sentence
    one = convergence("flat", flat[:1])
    assert one.kind == "training", "too few held-out losses of one seed alone"
    assert convergence_finding(one).caveat == "One seed: another may settle elsewhere."


def test_a_convergence_study_has_curves_and_findings(tmp_path: Path) -> None:
    for seed in range(3):
        made(tmp_path, "lr-0.01", seed, is_flat=False)
        made(tmp_path, "lr-0.001", seed, is_flat=True, place=1)
    summary = summarise_study(tmp_path / "hardware")
    assert {curve.label for curve in summary.curves} == {"lr-0.01", "lr-0.001"}
    assert [one.settled_at_step is None for one in summary.convergences] == [True, False]
    assert len(summary.findings) == 2
    patient = summarise_study(tmp_path / "hardware", least_gain=0.4)
    assert all(one.settled_at_step is not None for one in patient.convergences), "what counts is the user's to say"
