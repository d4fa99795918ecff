"""Nothing is called better or worse after too few steps, or where the clock gave one side more time."""

from pathlib import Path

import pytest

from foretune.analyse.against_base import base_findings
from foretune.analyse.comparability import overshot_clock, too_few_steps
from foretune.analyse.groups import configurations
from foretune.analyse.money import pricing
from foretune.analyse.recommending import Recommendation, recommend
from foretune.analyse.run_data import RunData, read_run, runs_in
from foretune.analyse.run_numbers import measures
from foretune.analyse.study_cells import HELD_OUT_LOSS, STEPS_MADE, TRAINING_SPEED
from foretune.analyse.study_summary import StudySummary, summarise_study
from foretune.stats.enough_steps import FEWEST_TRAINED_STEPS, fewest_steps, has_overshot
from tests.analyse.made_runs import asked, make_run
from tests.analyse.made_studies import make_part
from tests.analyse.test_against_base import evaluated


def run_of(folder: Path, num_steps: int, **sections: object) -> RunData:
    return read_run(make_run(folder, [0.1] * num_steps, experiment=asked(**sections)))


def test_the_least_is_fifty_steps_and_the_whole_warmup() -> None:
    assert FEWEST_TRAINED_STEPS == fewest_steps(0) == fewest_steps(10) == 50
    assert fewest_steps(200) == 200


@pytest.mark.parametrize(("counted_s", "has"), [(12.0, False), (13.1, False), (13.3, True)])
def test_a_tenth_beyond_its_time_is_the_most(counted_s: float, has: bool) -> None:
    assert has_overshot(counted_s, 12.0) == has


def test_steps_that_lack_are_counted(tmp_path: Path) -> None:
    enough, few = run_of(tmp_path / "a", 50), run_of(tmp_path / "b", 49)
    assert too_few_steps([enough]) is None
    assert too_few_steps([enough, few]) == "not enough steps: 49 of 50"
    timed = run_of(tmp_path / "c", 1, train={"steps": None, "seconds": 12})
    assert too_few_steps([timed]) == "not enough steps on this machine: 1 of 50"
    warming = run_of(tmp_path / "d", 60, optimizer={"warmup_steps": 100})
    assert too_few_steps([warming]) == "not enough steps: 60 of 100"


def test_a_bench_is_not_asked_for_steps(tmp_path: Path) -> None:
    bench = read_run(make_run(tmp_path / "a", [0.1] * 5, effective={"is_synthetic": False}))
    assert too_few_steps([bench]) is None


def test_one_step_is_not_better_than_its_base(tmp_path: Path) -> None:
    """What a demo said on a busy machine: "raises the style from 0.09548 to 0.09555: better"."""
    make_run(tmp_path / "a", [12.0], experiment=asked(train={"steps": None, "seconds": 12}))
    found = configurations(runs_in(tmp_path))
    (finding,) = base_findings(found, {found[0].runs[0].path: evaluated(("style", 0.1, 0.6))}, "style")
    assert "better" not in finding.sentence
    assert finding.sentence.endswith("is not compared with its base: not enough steps on this machine: 1 of 50.")


def recommended(folder: Path, **num_steps: int) -> Recommendation:
    """Full fine-tuning is shown to be four times as fast in every run."""
    for kind, num in num_steps.items():
        for seed in range(3):
            experiment = asked(method={"kind": kind}, train={"steps": num, "seed": seed})
            step_s = (0.1 if kind == "full" else 0.4) + 0.001 * seed
            make_run(folder / f"{kind}-{seed}", [step_s] * num, experiment=experiment)
    found = configurations(runs_in(folder))
    return recommend(found, measures(found, pricing(None), {}))


def test_nothing_is_recommended_after_too_few_steps(tmp_path: Path) -> None:
    assert recommended(tmp_path / "enough", full=60, lora=60).is_best_shown
    said = recommended(tmp_path / "few", full=20, lora=20)
    assert not said.is_best_shown
    assert said.chosen is None
    assert "not enough steps: 20 of 50" in said.finding.sentence


def test_what_has_too_few_steps_is_left_out_and_named(tmp_path: Path) -> None:
    said = recommended(tmp_path, full=60, lora=20, dora=60)
    assert said.is_best_shown
    assert {one.settings["method.kind"] for one in said.compared} == {"full", "dora"}
    assert "Not compared: LoRA" in (said.finding.caveat or "")


def study(folder: Path, *, num_steps: int, counted_s: float, protocol: str = "equal-time") -> StudySummary:
    """Of two configurations the second is shown to be better in every seed; its clock counted so much of 2 s."""
    for seed in range(3):
        for place, (name, loss) in enumerate((("first", 0.8), ("second", 0.5))):
            made, counted = (num_steps, counted_s) if place else (100, 2.0)
            held_out = {0: 1.0, made: loss + 0.001 * seed}
            make_part(
                folder, name, seed, order=(0, place), num_steps=made, held_out=held_out, counted_s=counted,
                protocol=protocol,
            )  # fmt: skip
    return summarise_study(folder / "hardware")


@pytest.mark.parametrize(
    ("num_steps", "counted_s", "why"),
    [
        (1, 2.0, "second: not enough steps on this machine: 1 of 50"),
        (100, 28.0, "second: not the same time: 28.0 s where 2 s was given"),
    ],
)
def test_a_study_says_why_it_does_not_compare(num_steps: int, counted_s: float, why: str, tmp_path: Path) -> None:
    summary = study(tmp_path, num_steps=num_steps, counted_s=counted_s)
    assert summary.comparisons == ()
    (finding,) = summary.findings
    assert finding.sentence == f"second and first are not compared: {why}."
    assert why in summary.warnings
    fine = study(tmp_path / "fine", num_steps=100, counted_s=2.1)
    assert {one.title for one in fine.comparisons} == {HELD_OUT_LOSS, STEPS_MADE}
    assert any("second is better" in finding.sentence for finding in fine.findings)


def test_speeds_of_few_steps_are_compared(tmp_path: Path) -> None:
    summary = study(tmp_path, num_steps=20, counted_s=2.0, protocol="equal-steps")
    assert {one.title for one in summary.comparisons} >= {TRAINING_SPEED}
    assert HELD_OUT_LOSS not in {one.title for one in summary.comparisons}


def test_a_run_without_a_clock_cannot_overshoot(tmp_path: Path) -> None:
    assert overshot_clock([run_of(tmp_path / "a", 60)]) is None
