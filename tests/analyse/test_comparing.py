"""Two sets of runs become answers, or are refused."""

from pathlib import Path

import pytest

from foretune.analyse.comparing import ComparedRuns, Permission, Unlike, compare
from foretune.analyse.run_data import runs_in
from tests.analyse.made_runs import ENVIRONMENT, asked, make_repeats, make_run

LEVELS_S = (0.100, 0.101, 0.099, 0.100, 0.102)


def compared(a: Path, b: Path, **permission: bool) -> ComparedRuns:
    return compare(runs_in(a), runs_in(b), Permission(**permission))


def test_a_slower_side_is_named_with_ratio_and_interval(tmp_path: Path) -> None:
    a = make_repeats(tmp_path / "a", LEVELS_S)
    b = make_repeats(tmp_path / "b", [1.2 * level_s for level_s in LEVELS_S], peak_host_bytes=2**31)
    found = compared(a, b)
    by_name = {one.comparison.quantity: one for one in found.quantities}
    assert list(by_name) == ["step time", "speed", "peak process memory", "last loss"]
    step_time = by_name["step time"].comparison
    assert step_time.answer == "b is higher"
    assert step_time.ratio == pytest.approx(1.2)
    assert step_time.interval is not None
    assert step_time.interval.low < 1.2 < step_time.interval.high
    assert step_time.runs_a == tuple(f"run-{number:02d}" for number in range(5))
    assert by_name["step time"].a.num_values == 100
    # 2 samples in about 0.1 s; and memory that never varies has an interval without width.
    assert by_name["speed"].a.value == pytest.approx(20, rel=0.02)
    assert by_name["speed"].comparison.answer == "a is higher"
    assert by_name["peak process memory"].comparison.answer == "b is higher"
    assert by_name["last loss"].comparison.answer == "no difference shown"


def test_one_run_each_shows_no_winner(tmp_path: Path) -> None:
    a, b = make_repeats(tmp_path / "a", [0.1]), make_repeats(tmp_path / "b", [0.2])
    step_time = compared(a, b).quantities[0].comparison
    assert step_time.ratio == pytest.approx(2.0)
    assert step_time.interval is None
    assert step_time.answer == "inconclusive"
    assert "a and b have one run only: how runs differ is not known" in step_time.warnings


def test_unlike_environments_are_refused_or_labelled(tmp_path: Path) -> None:
    a = make_repeats(tmp_path / "a", LEVELS_S)
    b = make_repeats(tmp_path / "b", LEVELS_S, environment={**ENVIRONMENT, "cpu": "other"})
    with pytest.raises(Unlike, match=r"cpu: one against other.*--across-environments"):
        compared(a, b)
    found = compared(a, b, across_environments=True)
    assert found.labels == ("across environments: cpu: one against other",)
    assert all(found.labels[0] in one.comparison.warnings for one in found.quantities)


def test_a_set_of_unlike_runs_is_refused_too(tmp_path: Path) -> None:
    a = make_repeats(tmp_path / "a", LEVELS_S)
    make_run(a / "stranger", [0.1] * 20, environment={**ENVIRONMENT, "cpu": "other"})
    with pytest.raises(Unlike, match="unlike environments"):
        compared(a, make_repeats(tmp_path / "b", LEVELS_S))


def test_the_users_own_source_may_differ_and_is_reported(tmp_path: Path) -> None:
    a = make_repeats(tmp_path / "a", LEVELS_S)
    b = make_repeats(
        tmp_path / "b", LEVELS_S, environment={**ENVIRONMENT, "source": {"commit": "3c4d", "dirty": False}}
    )
    assert compared(a, b).labels == ("source: source.commit: 1a2b against 3c4d",)


def test_unlike_questions_are_refused_or_compared_in_speed_alone(tmp_path: Path) -> None:
    a = make_repeats(tmp_path / "a", LEVELS_S)
    b = make_repeats(tmp_path / "b", LEVELS_S, experiment=asked(method={"kind": "lora", "rank": 4}))
    with pytest.raises(Unlike, match=r"method.rank: 16 against 4.*--across-questions"):
        compared(a, b)
    found = compared(a, b, across_questions=True)
    assert "last loss" not in {one.comparison.quantity for one in found.quantities}
    assert "across questions" in found.labels[0]


def test_other_data_is_another_question(tmp_path: Path) -> None:
    a = make_repeats(tmp_path / "a", LEVELS_S, effective={"data_fingerprint": "x"})
    b = make_repeats(tmp_path / "b", LEVELS_S, effective={"data_fingerprint": "y"})
    with pytest.raises(Unlike, match="data fingerprint: x against y"):
        compared(a, b)


def test_more_steps_are_the_same_speed_but_not_the_same_loss(tmp_path: Path) -> None:
    a = make_repeats(tmp_path / "a", LEVELS_S)
    b = make_repeats(tmp_path / "b", LEVELS_S, num_steps=30, experiment=asked(train={"steps": 30}))
    found = compared(a, b)
    assert found.quantities[0].comparison.answer == "no difference shown"
    assert found.quantity("last loss") is None


def test_runs_that_did_not_finish_are_left_out_by_name(tmp_path: Path) -> None:
    a = make_repeats(tmp_path / "a", LEVELS_S)
    make_run(a / "broken", [5.0, 5.0], status="out of memory")
    b = make_repeats(tmp_path / "b", LEVELS_S)
    found = compared(a, b)
    assert found.left_out == ("1 of 6 runs of a left out: not finished (broken: out of memory)",)
    assert found.quantities[0].a.num_runs == 5
    only_broken = tmp_path / "c"
    make_run(only_broken / "broken", [5.0], status="failed")
    with pytest.raises(Unlike, match="no run of b has finished"):
        compared(a, only_broken)


def test_sides_measured_one_after_the_other_are_warned_of(tmp_path: Path) -> None:
    a, b = make_repeats(tmp_path / "a", LEVELS_S), make_repeats(tmp_path / "b", LEVELS_S)
    assert any("after the other" in text for text in compared(a, b).quantities[0].comparison.warnings)
    paired = compare(runs_in(a), runs_in(b), is_paired=True)
    assert not any("after the other" in text for text in paired.quantities[0].comparison.warnings)


def test_the_same_runs_on_both_sides_are_warned_of(tmp_path: Path) -> None:
    a = make_repeats(tmp_path / "a", LEVELS_S)
    assert "the same runs are on both sides" in compared(a, a).quantities[0].comparison.warnings


def test_drifting_runs_are_not_compared(tmp_path: Path) -> None:
    rising = [0.1 * (1 + 0.01 * step) for step in range(60)]
    for side in ("a", "b"):
        for number in range(3):
            make_run(tmp_path / side / str(number), rising)
    step_time = compared(tmp_path / "a", tmp_path / "b").quantities[0]
    assert step_time.comparison.answer == "inconclusive"
    assert step_time.comparison.ratio is None
    assert any("3 of 3 runs are not steady" in text for text in step_time.comparison.warnings)


def test_another_batch_is_another_question(tmp_path: Path) -> None:
    a = make_repeats(tmp_path / "a", LEVELS_S)
    b = make_repeats(tmp_path / "b", [0.5 * level for level in LEVELS_S], experiment=asked(train={"batch_size": 1}))
    with pytest.raises(Unlike, match=r"samples in a step: 2 against 1.*--across-questions"):
        compared(a, b)
    assert "last loss" not in {one.comparison.quantity for one in compared(a, b, across_questions=True).quantities}
    split = asked(train={"batch_size": 1, "gradient_accumulation": 2})
    same = compared(a, make_repeats(tmp_path / "c", LEVELS_S, experiment=split))
    assert same.labels == ("settings: train.batch_size: 2 against 1; train.gradient_accumulation: 1 against 2",)


def test_settings_that_change_speed_are_told_between_the_sides_and_refused_within_one(tmp_path: Path) -> None:
    a = make_repeats(tmp_path / "a", LEVELS_S)
    b = make_repeats(tmp_path / "b", LEVELS_S, experiment=asked(levers={"compile": "regional"}))
    label = "settings: levers.compile: off against regional"
    assert compared(a, b).labels == (label,)
    assert label in compared(a, b).quantities[0].comparison.warnings
    make_run(a / "threads", [0.1] * 20, experiment=asked(parallel={"threads": 2}))
    with pytest.raises(Unlike, match=r"The runs of a were made with different settings \(parallel.threads: none"):
        compared(a, b)
    reported = compared(a, b, across_questions=True).labels
    assert reported[0].startswith("a mixes settings: parallel.threads")


def test_runs_of_several_seeds_are_repeats(tmp_path: Path) -> None:
    for side, factor in (("a", 1.0), ("b", 1.5)):
        for seed in range(5):
            losses = [factor * (1 + 0.1 * seed)] * 20
            make_run(tmp_path / side / str(seed), [0.1] * 20, experiment=asked(train={"seed": seed}), losses=losses)
    found = compared(tmp_path / "a", tmp_path / "b").quantity("last loss")
    assert found is not None
    # In pairs of one seed the ratio never varies; by seeds alone, losses differ more than the sides do.
    assert found.comparison.answer == "b is higher"
    assert found.comparison.ratio == pytest.approx(1.5)


def test_repeats_of_one_seed_name_no_winner_among_losses(tmp_path: Path) -> None:
    a = make_repeats(tmp_path / "a", LEVELS_S, losses=[1.0] * 20)
    b = make_repeats(tmp_path / "b", LEVELS_S, losses=[1.000001] * 20)
    found = compared(a, b).quantity("last loss")
    assert found is not None
    assert found.comparison.answer == "inconclusive"
    assert found.comparison.interval is None
    assert any("one seed only" in text for text in found.comparison.warnings)


def test_held_out_losses_by_other_validation_are_not_compared(tmp_path: Path) -> None:
    a = make_repeats(tmp_path / "a", LEVELS_S)
    b = make_repeats(tmp_path / "b", LEVELS_S, experiment=asked(validate={"num_held_out": 4}))
    found = compared(a, b)
    assert found.quantity("step time") is not None
    assert found.quantity("held-out loss") is None
    assert found.quantity("last loss") is None


def test_a_run_that_ended_before_it_knew_its_machine_hinders_no_comparison(tmp_path: Path) -> None:
    a, b = make_repeats(tmp_path / "a", LEVELS_S), make_repeats(tmp_path / "b", LEVELS_S)
    make_run(a / "broken", [], status=None, environment={"cpu": "unknown"})
    assert compared(a, b).left_out == ("1 of 6 runs of a left out: not finished (broken: stopped without warning)",)


def test_a_machine_that_was_busier_for_one_side_is_warned_of(tmp_path: Path) -> None:
    def loaded(load: str) -> dict[str, object]:
        return {**ENVIRONMENT, "num_usable_cpus": 2, "volatile": {"load": load}}

    for name, load in (("idle", "0.90 0.5 0.5 1/100 7"), ("busy", "4.40 2.0 1.0 3/120 9"), ("torn", "?")):
        make_repeats(tmp_path / name, LEVELS_S, environment=loaded(load))
    (warning,) = [
        text
        for text in compared(tmp_path / "idle", tmp_path / "busy").quantities[0].comparison.warnings
        if text.startswith("the machine was busier for b: a load of 0.9 for a and 4.4 for b on 2 processors")
    ]
    assert "measure in turns" in warning
    for other in ("idle", "torn"):
        found = compared(tmp_path / "idle", tmp_path / other).quantities[0].comparison.warnings
        assert not any("busier" in text for text in found)
    in_turns = compare(runs_in(tmp_path / "idle"), runs_in(tmp_path / "busy"), is_paired=True)
    assert not any("busier" in text for text in in_turns.quantities[0].comparison.warnings)
