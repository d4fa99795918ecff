"""Scores that cannot be above one have no interval that is, in studies and in reports."""

from pathlib import Path

import pytest

from foretune.analyse.against_base import change_of
from foretune.analyse.evaluations import evaluation_of
from foretune.analyse.groups import configurations
from foretune.analyse.run_data import runs_in
from foretune.analyse.run_numbers import quality_measure
from foretune.analyse.study_summary import summarise_study
from foretune.core.values import Evaluation
from foretune.stats.intervals import mean_interval
from tests.analyse.made_runs import asked, make_run
from tests.analyse.made_studies import make_part, write_evaluation

SHARES = {"one": (20 / 24, 23 / 24, 24 / 24), "two": (9 / 24, 22 / 24, 24 / 24)}


def test_a_study_stays_within_bounds(tmp_path: Path) -> None:
    for place, (name, shares) in enumerate(SHARES.items()):
        for seed, share in enumerate(shares):
            scores = {"caption accuracy": share, "style": share}
            make_part(tmp_path, name, seed, order=(0, place), held_out={20: 0.5}, counted_s=2.0, scores=scores)
    summary = summarise_study(tmp_path / "hardware")
    for cell in summary.cells:
        for metric in ("caption accuracy", "style"):
            number = cell.numbers[metric]
            assert mean_interval(list(number.by_seed.values()), 0.95)[2] > 1, "Student's leaves the bounds"
            assert number.low is not None
            assert number.high is not None
            assert 0 <= number.low < number.value < number.high <= 1
    differences = [one for one in summary.comparisons if one.title in ("caption accuracy", "style")]
    assert len(differences) == 2
    for one in differences:
        assert one.low is not None
        assert one.high is not None
        assert -1 <= one.low < one.value < one.high <= 1


def test_a_study_of_equal_shares_is_not_certain(tmp_path: Path) -> None:
    for place, name in enumerate(("one", "two")):
        for seed in range(3):
            scores = {"caption accuracy": 1.0}
            make_part(tmp_path, name, seed, order=(0, place), held_out={20: 0.5}, counted_s=2.0, scores=scores)
    summary = summarise_study(tmp_path / "hardware")
    assert [cell.numbers["caption accuracy"].low for cell in summary.cells] == [pytest.approx(0.949, abs=0.001)] * 2
    (share,) = [one for one in summary.comparisons if one.title == "caption accuracy"]
    # By hand, with one more outcome of either kind: 2.24 sqrt(2 * 73 / 74 * 1 / 74 / 74), 97.5 % for two qualities.
    assert share.low == pytest.approx(-0.0425, abs=0.0002)
    assert share.high == pytest.approx(0.0425, abs=0.0002)


def evaluated(folder: Path, after: tuple[float, ...]) -> dict[Path, Evaluation]:
    for seed, share in enumerate(after):
        path = make_run(folder / f"run-{seed}", [0.1] * 60, experiment=asked(train={"steps": 20, "seed": seed}))
        write_evaluation(path, {"caption accuracy": share}, {"caption accuracy": 0.25})
    return {run.path: found for run in runs_in(folder) if (found := evaluation_of(run.path)) is not None}


def test_a_report_stays_within_bounds(tmp_path: Path) -> None:
    evaluations = evaluated(tmp_path, SHARES["two"])
    found = configurations(runs_in(tmp_path))
    measure = quality_measure(found, evaluations)
    assert measure is not None
    estimate = measure.estimate(found[0].finished)
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    assert 0 <= estimate.low < estimate.high <= 1
    change = change_of(found[0], evaluations, "caption accuracy")
    assert change is not None
    assert change.high is not None
    assert change.high <= 1


def test_equal_gains_of_runs_have_a_width(tmp_path: Path) -> None:
    evaluations = evaluated(tmp_path, (1.0, 1.0, 1.0))
    change = change_of(configurations(runs_in(tmp_path))[0], evaluations, "caption accuracy")
    assert change is not None
    assert change.value == 0.75
    assert change.low is not None
    assert 0.70 < change.low < 0.74
