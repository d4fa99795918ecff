"""What a sweep's trials say together: the best batch, scaling, the cost of compiling, loss curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from foretune.analyse.sweep_findings import best_batches, scalings
from foretune.analyse.sweep_summary import summarise_sweep
from foretune.choices.sweep import SweepFile
from foretune.executors.outcome import TaskOutcome
from foretune.reports.sweep_plots import write_sweep_plots
from foretune.reports.terminal.sweep import print_summary
from foretune.stats.deciding import decide
from foretune.sweeps.trial_results import TrialNumbers, TrialResult
from tests.analyse.made_runs import asked, make_run


def trial(
    changes: Mapping[str, Any], seed: int = 0, speed: float | None = None, run: Path | None = None, devices: int = 1
) -> TrialResult:
    labels = {axis: str(value) for axis, value in changes.items()}
    return TrialResult(
        name=f"{'-'.join(labels.values())}-{seed}",
        content=f"{labels}{seed}",
        labels=labels,
        changes=changes,
        seed=seed,
        outcome=TaskOutcome(kind="done", seconds=3.0),
        run=run,
        numbers=TrialNumbers(samples_per_s=speed, num_devices=devices),
    )


def file(axes: Mapping[str, Sequence[Any]], measure: str = "speed") -> SweepFile:
    return SweepFile.model_validate({"experiment": {"model": "flux.1-dev"}, "measure": measure, "axes": axes})


def test_the_best_batch_of_each_precision_stands_beside_the_smallest() -> None:
    speeds = {("bf16", 1): 16.0, ("bf16", 10): 34.0, ("bf16", 17): 30.0, ("fp32", 1): 8.0, ("fp32", 10): 9.0}
    results = [
        trial({"train.precision": precision, "train.batch_size": batch}, seed, speed * (1 + 0.01 * seed), devices=8)
        for (precision, batch), speed in speeds.items()
        for seed in range(3)
    ]
    bf16, fp32 = best_batches(results)
    assert (bf16.fixed, bf16.smallest, bf16.best) == ("precision bf16", 1, 10)
    assert bf16.smallest_samples_per_s == pytest.approx(2.0 * 1.01), "of one of eight devices"
    assert bf16.best_samples_per_s == pytest.approx(4.25 * 1.01)
    assert bf16.gain.value == pytest.approx(34 / 16)
    assert (bf16.gain.low, bf16.gain.high) == pytest.approx((34 / 16, 34 / 16)), "seed by seed the ratio is the same"
    assert (fp32.fixed, fp32.best) == ("precision fp32", 10)
    assert best_batches(results[:3]) == (), "one batch size alone"


def test_scaling_is_the_speed_of_a_device_beside_that_of_one() -> None:
    results = [trial({"parallel.devices": n}, 0, s, devices=n) for n, s in ((1, 10.0), (2, 18.0), (4, 28.0))]
    found = {one.num_devices: one for one in scalings(results)}
    assert {number: one.efficiency.value for number, one in found.items()} == pytest.approx({1: 1.0, 2: 0.9, 4: 0.7})
    assert found[4].samples_per_s == pytest.approx(28.0)
    assert found[4].efficiency.low is None, "one seed has no interval"


def test_intervals_have_the_confidence_that_is_printed_with_them() -> None:
    """95 %, of the best of three sizes by Bonferroni's rule; as from the same seeds decided directly."""
    by_size = {
        size: [speed * (1 + 0.01 * size * seed) for seed in range(3)] for size, speed in ((1, 10), (2, 15), (4, 20))
    }
    batches = [
        trial({"train.batch_size": size}, seed, speed)
        for size, speeds in by_size.items()
        for seed, speed in enumerate(speeds)
    ]
    (best,) = best_batches(batches)
    expected = decide(by_size[1], by_size[4], is_paired=True, confidence=1 - 0.05 / 2)
    assert (best.gain.low, best.gain.high) == (expected.low, expected.high)
    devices = [
        trial({"parallel.devices": num}, seed, speed, devices=num)
        for num, speeds in ((1, by_size[1]), (2, by_size[2]))
        for seed, speed in enumerate(speeds)
    ]
    two = next(one for one in scalings(devices) if one.num_devices == 2)
    expected = decide(by_size[1], [speed / 2 for speed in by_size[2]], is_paired=True, confidence=0.95)
    assert (two.efficiency.low, two.efficiency.high) == (expected.low, expected.high)


def compiled_and_plain(folder: Path, compiled_step_s: float) -> list[TrialResult]:
    results = []
    for mode, first_s, step_s in (("off", 0.5, 0.5), ("regional", 258.5, compiled_step_s)):
        for seed in range(3):
            times = [first_s, *(step_s * (1 + 0.01 * seed + 0.002 * (step % 3)) for step in range(30))]
            experiment = asked(train={"seed": seed, "steps": 31}, levers={"compile": mode})
            run = make_run(folder / f"{mode}-{seed}", times, experiment=experiment)
            results.append(trial({"levers.compile": mode}, seed, 2 / step_s, run))
    return results


@pytest.mark.parametrize(
    ("step_s", "pays", "words"),
    [
        (0.6, "never", "break-even: never: its steps are not faster."),
        (0.25, "1,0", "break-even: after 1,0"),
    ],
)
def test_the_cost_of_compiling_and_its_break_even_are_in_table_and_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], step_s: float, pays: str, words: str
) -> None:
    results = compiled_and_plain(tmp_path, step_s)
    summary = summarise_sweep("s", file({"levers.compile": ["off", "regional"]}), results, None)
    (cost,) = summary.compile_costs
    assert cost.start_s == pytest.approx(258.5 - step_s, abs=0.5)
    (finding,) = summary.findings
    assert finding.sentence.startswith("compile regional compiles for 25")
    assert words in finding.sentence
    assert "The 31 steps of a trial take 4 min" in finding.sentence
    print_summary(summary)
    table = capsys.readouterr().out
    assert "compiles" in table
    assert "4 min 1" in table
    assert f" {pays}" in table


def test_a_sweep_that_trains_draws_the_loss_of_each_combination(tmp_path: Path) -> None:
    results = []
    for precision in ("fp32", "bf16"):
        for seed in range(3):
            losses = [1 / (1 + step) + 0.01 * seed for step in range(40)]
            run = make_run(
                tmp_path / f"{precision}-{seed}", [0.1] * 40, losses=losses, experiment=asked(train={"seed": seed})
            )
            results.append(trial({"train.precision": precision}, seed, 10.0, run))
    of_training = file({"train.precision": ["fp32", "bf16"]}, "train")
    summary = summarise_sweep("s", of_training, results, None)
    assert [curve.label for curve in summary.curves] == ["precision fp32", "precision bf16"]
    assert any("precision bf16: " in finding.sentence for finding in summary.findings)
    svg, *_ = write_sweep_plots(summary.to_mapping(), of_training.options, tmp_path)
    assert svg.name == "plot-loss-curves.svg"
    text = svg.read_text()
    for words in (
        "training loss",
        "precision bf16",
        "exponential moving average over 3 steps; faint: the loss of each",
    ):
        assert words in text, words
    speed_only = summarise_sweep("s", file({"train.precision": ["fp32", "bf16"]}), results, None)
    assert (speed_only.curves, speed_only.findings) == ((), ())


def test_a_refused_combination_is_printed_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "train.precision: the loss scale of fp16 is not shared between shards yet."
    refused = TrialResult(
        name="fp16", content="fp16", labels={"train.precision": "fp16"}, changes={}, seed=0,
        outcome=TaskOutcome(kind="refused", reason=reason, seconds=0.0), run=None, numbers=TrialNumbers(),
    )  # fmt: skip
    done = trial({"train.precision": "bf16"}, 0, 10.0)
    print_summary(summarise_sweep("s", file({"train.precision": ["bf16", "fp16"]}), [done, refused], None))
    assert f"Refused (precision fp16): {reason}" in capsys.readouterr().out
