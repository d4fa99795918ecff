"""A gain over the base is reported with what was paid for it."""

from pathlib import Path

import pytest

from foretune.analyse.against_base import base_findings
from foretune.analyse.groups import configurations
from foretune.analyse.run_data import runs_in
from foretune.core.values import Evaluation
from foretune.core.values.evaluation import Score, ScoreDifference
from tests.analyse.made_runs import asked, make_run

_GAIN = ("style", 0.1, 0.6)


def evaluated(*changes: tuple[str, float, float]) -> Evaluation:
    """Metrics with their value before and after, each off by at most 0.05."""
    scores = [
        score
        for name, base, after in changes
        for score in (
            Score(metric=name, unit="", higher_is_better=True, column="base", value=base),
            Score(metric=name, unit="", higher_is_better=True, column="run", value=after),
        )
    ]
    differences = [
        ScoreDifference(
            metric=name,
            difference=after - base,
            low=after - base - 0.05,
            high=after - base + 0.05,
            confidence=0.95,
            answer="better" if after > base else "worse",
            num_pairs=16,
        )
        for name, base, after in changes
    ]
    return Evaluation(
        evaluation_id="e",
        subject="run",
        base="base",
        run_id=None,
        model="m",
        settings={},
        environment_hash="h",
        scores=tuple(scores),
        differences=tuple(differences),
    )


@pytest.mark.parametrize(
    ("after", "is_reported"),
    [(0.2, True), (0.88, False), (0.99, False)],
    ids=["shown to be worse", "not shown", "better"],
)
def test_what_a_gain_was_paid_with_is_reported(after: float, is_reported: bool, tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.1] * 60)
    found = configurations(runs_in(tmp_path))
    run = found[0].runs[0]
    (finding,) = base_findings(found, {run.path: evaluated(_GAIN, ("caption accuracy", 0.9, after))}, "style")
    assert "raised style from 0.10 to 0.60" in finding.sentence
    assert ("Worse than its base in caption accuracy by 0.70 (0.65 to 0.75)" in finding.sentence) == is_reported
    assert ("orse" in finding.sentence) == is_reported


def test_a_loss_that_is_hardly_shown_is_not_told_as_none(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.1] * 60)
    found = configurations(runs_in(tmp_path))
    evaluation = evaluated(_GAIN, ("caption accuracy", 0.9, 0.5))
    wide = [one.model_copy(update={"low": -0.75, "high": -0.02}) for one in evaluation.differences[1:]]
    evaluation = evaluation.model_copy(update={"differences": (evaluation.differences[0], *wide)})
    (finding,) = base_findings(found, {found[0].runs[0].path: evaluation}, "style")
    assert "Worse than its base in caption accuracy by 0.4 (more than 0 to 0.8)." in finding.sentence


def test_a_second_run_does_not_hide_what_each_of_them_shows(tmp_path: Path) -> None:
    """Student's interval of two runs is 13 times their error; each run alone was shown to be better."""
    for seed in range(2):
        make_run(tmp_path / f"run-{seed}", [0.1] * 60, experiment=asked(train={"steps": 20, "seed": seed}))
    found = configurations(runs_in(tmp_path))
    afters = (0.55, 0.65)
    evaluations = {run.path: evaluated(("style", 0.1, after)) for run, after in zip(found[0].runs, afters, strict=True)}
    (finding,) = base_findings(found, evaluations, "style")
    assert "no change in style shown. 0.1 before, 0.6 after" in finding.sentence
    assert "Each of its 2 runs is better over its own prompts" in finding.sentence
    split = dict(zip(evaluations, (evaluated(("style", 0.1, 0.6)), evaluated(("style", 0.6, 0.1))), strict=True))
    (finding,) = base_findings(found, split, "style")
    assert "Each of its" not in finding.sentence
