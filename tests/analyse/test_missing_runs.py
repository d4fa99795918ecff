"""Of a configuration with too few runs it is said what is known, and what more of them would show."""

import random
import re
import statistics
from pathlib import Path

import pytest

from foretune.analyse.missing_runs import missing_findings
from foretune.analyse.ranking import rank
from foretune.analyse.run_data import gather
from foretune.analyse.run_report import RunTask, run_report
from foretune.reports.run_markdown import report_markdown
from foretune.reports.run_page import report_page
from tests.analyse.made_runs import asked, make_run
from tests.analyse.made_studies import write_evaluation


def made(folder: Path, **styles: tuple[float, ...]) -> RunTask:
    """Configurations by their method's kind, a run of each style score."""
    for kind, scores in styles.items():
        for seed, score in enumerate(scores):
            method = {"kind": "full"} if kind == "full" else {"kind": kind, "rank": 4}
            experiment = asked(method=method, train={"steps": 20, "seed": seed})
            path = make_run(folder / f"{kind}-{seed}", [0.1] * 60, experiment=experiment)
            write_evaluation(path, {"style": score})
    (task,) = run_report(gather([folder]), folder).tasks
    return task


def said(task: RunTask) -> str:
    return " ".join(finding.sentence for finding in task.missing)


def test_nothing_is_missing_where_each_has_three(tmp_path: Path) -> None:
    task = made(tmp_path, full=(0.90, 0.91, 0.92), lora=(0.80, 0.81, 0.82))
    assert task.missing == ()


def test_one_run_far_behind_would_soon_be_reported(tmp_path: Path) -> None:
    task = made(tmp_path, full=(0.90, 0.91, 0.92), lora=(0.60,))
    assert said(task).startswith(
        "A (LoRA rank 4) has one run: style 0.60, so far 0.31 behind B (full fine-tuning). It can be shown neither best"
    )
    # By hand: repeats differ by 0.01; with 3 of each, at the 3 % that quality is asked with and 2.6 degrees of freedom:
    # (4.3446 + 1.7082) * 0.01 * sqrt(2 / 3).
    assert "Repeats here have a standard deviation of 0.010" in said(task)
    assert "2 more runs (train.seed=1 and train.seed=2) would show a difference of 0.049 in nine of ten cases" in said(
        task
    )
    assert said(task).endswith("this one is larger.")


def test_a_small_difference_takes_more(tmp_path: Path) -> None:
    task = made(tmp_path, full=(0.90, 0.91, 0.92), lora=(0.89,))
    # By hand: 8 of each show (2.5686 + 1.3818) * 0.01 * sqrt(2 / 8) = 0.0198, less than 0.020; 7 of each show 0.0216.
    assert "this one is smaller, and would take about 7 more" in said(task)


def test_one_run_that_leads_is_said_to_lead(tmp_path: Path) -> None:
    task = made(tmp_path, full=(0.90, 0.91, 0.92), lora=(0.97,))
    assert "so far 0.060 ahead of B (full fine-tuning)" in said(task)


def test_single_runs_do_not_hide_the_best_of_the_others(tmp_path: Path) -> None:
    task = made(tmp_path, full=(0.90, 0.91, 0.92), lora=(0.50, 0.51, 0.52), loha=(0.60,))
    assert task.recommendation.chosen is None or not task.recommendation.is_best_shown
    assert said(task).startswith(
        "Of the 2 configurations with 3 runs or more, C (full fine-tuning) is shown to be best in style;"
    )


def test_of_single_runs_none_is_recommended(tmp_path: Path) -> None:
    """The cheapest could be far worse: the report says who leads, and nothing is marked."""
    task = made(tmp_path, full=(0.9,), lora=(0.3,))
    sentence = task.recommendation.finding.sentence
    assert task.recommendation.chosen is None
    assert task.recommendation.headline == "Tie: one run each, so no winner can be shown"
    assert "So far B (full fine-tuning) has the highest style, 0.90" in sentence
    assert "ake the" not in sentence


def test_models_are_told_apart_over_their_prompts(tmp_path: Path) -> None:
    """Two models on the same prompts: one is better by 0.1 in each, give or take; that is said of these models."""
    rng = random.Random(2)
    hard = [rng.random() * 0.5 for _ in range(24)]
    for kind, gain in (("full", 0.1), ("lora", 0.0)):
        method = {"kind": "full"} if kind == "full" else {"kind": kind, "rank": 4}
        path = make_run(tmp_path / kind, [0.1] * 60, experiment=asked(method=method, train={"steps": 20, "seed": 0}))
        raw = tuple(value + gain + rng.gauss(0, 0.02) for value in hard)
        write_evaluation(path, {"style": statistics.fmean(raw)}, raw={"style": raw})
    (task,) = run_report(gather([tmp_path]), tmp_path).tasks
    lead = re.search(
        r"Over the same 24 prompts, the model of B is better than that of A by (\S+) \((\S+) to (\S+)\);", said(task)
    )
    assert lead is not None
    value, low, high = map(float, lead.groups())
    assert 0.07 < low < value < high < 0.13


def test_where_none_was_repeated_it_is_said_once(tmp_path: Path) -> None:
    task = made(tmp_path, full=(0.9,), lora=(0.8,), loha=(0.7,))
    (finding,) = task.missing
    assert finding.sentence.startswith("None of the 3 configurations was repeated")
    assert "2 more runs of each (train.seed=1 and train.seed=2)" in finding.sentence
    assert "5 times that spread" in finding.sentence


@pytest.mark.parametrize(("scores", "words"), [((0.9,), "has one run: style 0.90"), ((0.9, 0.8), "has two runs")])
def test_one_configuration_alone(scores: tuple[float, ...], words: str, tmp_path: Path) -> None:
    assert words in said(made(tmp_path, full=scores))


def test_nothing_is_missing_where_a_best_is_shown(tmp_path: Path) -> None:
    task = made(tmp_path, full=(0.90, 0.91, 0.92), lora=(0.100, 0.101, 0.102))
    assert task.recommendation.is_best_shown
    assert task.missing == ()


def test_two_runs_need_one_more(tmp_path: Path) -> None:
    task = made(tmp_path, full=(0.90, 0.91, 0.92), lora=(0.80, 0.84))
    assert not task.recommendation.is_best_shown
    assert "1 more run (train.seed=2) would show" in said(task)


def test_page_and_markdown_say_it(tmp_path: Path) -> None:
    made(tmp_path, full=(0.90, 0.91, 0.92), lora=(0.60,))
    report = run_report(gather([tmp_path]), tmp_path)
    for text in (report_page(report), report_markdown(report)):
        assert "What more runs would show:" in text
        assert "can be shown neither best nor worse" in text


def test_failed_runs_alone_miss_nothing() -> None:
    assert missing_findings([], (), (), {}) == []


@pytest.mark.parametrize(("num_runs", "spreads"), [(3, 4.942), (8, 1.975)])
def test_what_is_promised_of_more_runs_holds(num_runs: int, spreads: float) -> None:
    """Differences as they are promised to show at 3 % in nine of ten cases."""
    rng = random.Random(5)
    shown = 0
    for _ in range(600):
        groups = [[rng.gauss(centre, 1) for _ in range(num_runs)] for centre in (spreads, 0)]
        shown += rank(groups, higher_is_better=True, alpha=0.03).best == 0
    assert 0.86 < shown / 600 < 0.95
