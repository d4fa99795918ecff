"""A sweep's controller: every combination once, in turns, nothing again, and what failed is a result."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from foretune.config.sweep_files import SweepAsked
from foretune.executors.outcome import TaskOutcome
from foretune.executors.task import Resources
from foretune.sweeps.controller import NoForecasts, SweepController, TrialWatcher
from foretune.sweeps.strategies.seam import MemoryExcess
from foretune.sweeps.sweep_folder import SweepFolder, sweep_folder
from foretune.sweeps.trial_results import TrialResult, read_result
from tests.sweeps.fake_executor import DONE, FakeExecutor
from tests.sweeps.sweeps_of_tests import EXPERIMENT, asked


def run(
    sweep: SweepAsked, folder: SweepFolder, executor: FakeExecutor, environment: str = "here", **more: Any
) -> list[TrialResult]:
    return SweepController(asked=sweep, folder=folder, executor=executor, environment=environment, **more).run()


def places(executor: FakeExecutor) -> list[tuple[int, str, int]]:
    found = [task.request["experiment"]["train"] for task in executor.performed]
    return [(train["batch_size"], train["precision"], train["seed"]) for train in found]


def test_every_combination_is_run_once_with_each_seed_in_turns(tmp_path: Path) -> None:
    sweep, executor = asked(tmp_path, seeds=[0, 1]), FakeExecutor()
    results = run(sweep, sweep_folder(tmp_path / "sweeps", sweep), executor)
    round_of_0 = [(batch, precision, 0) for batch in (1, 2) for precision in ("fp32", "bf16")]
    assert places(executor) == [*round_of_0, *((batch, precision, 1) for batch, precision, _ in reversed(round_of_0))]
    assert [result.outcome.kind for result in results] == ["done"] * 8
    assert {result.run.parent.name for result in results if result.run} == {task.name for task in executor.performed}


def test_the_same_command_runs_nothing_again_and_another_environment_everything(tmp_path: Path) -> None:
    sweep = asked(tmp_path)
    folder = sweep_folder(tmp_path / "sweeps", sweep)
    run(sweep, folder, FakeExecutor())
    again = FakeExecutor()
    results = run(sweep, folder, again)
    assert again.performed == []
    assert [result.is_reused for result in results] == [True] * 4
    elsewhere = FakeExecutor()
    run(sweep, folder, elsewhere, environment="other versions")
    assert len(elsewhere.performed) == 4


def test_a_stopped_controller_continues_where_it_was(tmp_path: Path) -> None:
    sweep = asked(tmp_path, seeds=[0, 1])
    folder = sweep_folder(tmp_path / "sweeps", sweep)
    for most in range(7):
        executor = FakeExecutor(most=1)
        with pytest.raises(KeyboardInterrupt):
            run(sweep, folder, executor)
        assert len(executor.performed) == 1, most
    last = FakeExecutor()
    results = run(sweep, folder, last)
    assert len(last.performed) == 1
    assert len({result.name for result in results}) == 8


def test_a_trial_is_known_by_its_content_after_an_axis_was_added(tmp_path: Path) -> None:
    first = asked(tmp_path, axes={"train.batch_size": [1, 2]})
    run(first, sweep_folder(tmp_path / "sweeps", first), FakeExecutor())
    wider = asked(tmp_path, axes={"train.batch_size": [1, 2, 4], "method.rank": [4, 8]})
    folder, executor = sweep_folder(tmp_path / "sweeps", wider), FakeExecutor()
    results = run(wider, folder, executor)
    assert folder.path.name == "sweep_000"
    trials = [task.request["experiment"] for task in executor.performed]
    ran = [(one["train"]["batch_size"], one["method"]["rank"]) for one in trials]
    assert ran == [(1, 8), (2, 8), (4, 4), (4, 8)], "rank 4 is the experiment's own"
    assert [result.labels for result in results if result.is_reused] == [
        {"train.batch_size": "1", "method.rank": "4"},
        {"train.batch_size": "2", "method.rank": "4"},
    ]
    assert {tuple(one.labels) for path in folder.trial_folders() if (one := read_result(path))} == {
        tuple(wider.file.axes)
    }


def test_another_experiment_gets_another_folder_and_so_does_a_new_sweep(tmp_path: Path) -> None:
    sweep = asked(tmp_path)
    assert sweep_folder(tmp_path / "sweeps", sweep).path.name == "sweep_000"
    assert sweep_folder(tmp_path / "sweeps", sweep).path.name == "sweep_000"
    assert sweep_folder(tmp_path / "sweeps", asked(tmp_path, seeds=[1])).path.name == "sweep_000"
    assert sweep_folder(tmp_path / "sweeps", asked(tmp_path, "train.steps=9")).path.name == "sweep_001"
    assert sweep_folder(tmp_path / "sweeps", asked(tmp_path, "train.steps=9"), is_new=True).path.name == "sweep_002"


def test_a_failed_trial_is_a_result_and_is_run_again_on_request_only(tmp_path: Path) -> None:
    sweep = asked(tmp_path)
    folder = sweep_folder(tmp_path / "sweeps", sweep)

    def decide(experiment: dict[str, Any]) -> TaskOutcome:
        large = experiment["train"]["batch_size"] == 2
        return TaskOutcome(kind="out of host memory", reason="no memory", num_attempts=1) if large else DONE

    results = run(sweep, folder, FakeExecutor(decide))
    assert [result.outcome.kind for result in results] == ["done"] * 2 + ["out of host memory"] * 2
    again = FakeExecutor()
    assert [result.is_done for result in run(sweep, folder, again)] == [True, True, False, False]
    assert again.performed == []
    retried = FakeExecutor()
    assert all(result.is_done for result in run(sweep, folder, retried, retries_failed=True))
    assert [place[0] for place in places(retried)] == [2, 2]


def test_what_was_never_started_is_started_by_the_next_command(tmp_path: Path) -> None:
    sweep = asked(tmp_path)
    folder = sweep_folder(tmp_path / "sweeps", sweep)
    run(sweep, folder, FakeExecutor(lambda _: TaskOutcome(kind="never started", reason="the queue is closed")))
    executor = FakeExecutor()
    assert all(result.is_done for result in run(sweep, folder, executor))
    assert len(executor.performed) == 4


def test_a_combination_that_does_not_work_is_recorded_without_running(tmp_path: Path) -> None:
    axes = {"method.kind": ["full", "lora"], "quantize.denoiser": ["none", "int8"]}
    sweep = asked(tmp_path, axes=axes, experiment={**EXPERIMENT, "method": {"kind": "full"}})
    executor = FakeExecutor()
    results = run(sweep, sweep_folder(tmp_path / "sweeps", sweep), executor)
    refused = [result for result in results if result.outcome.kind == "refused"]
    assert [result.labels for result in refused] == [{"method.kind": "full", "quantize.denoiser": "int8"}]
    assert "full" in (refused[0].outcome.reason or "")
    assert len(executor.performed) == 3


class Predicting(NoForecasts):
    """Says that batches of 2 need a GiB too much, by its low end or only likely."""

    def __init__(self, low_bytes: float) -> None:
        self._low_bytes = low_bytes

    def estimate(self, trial: Any) -> MemoryExcess:
        return (
            MemoryExcess(self._low_bytes, 2**30)
            if trial.values["train.batch_size"] == 2
            else MemoryExcess(-(2**30), -(2**30))
        )


@pytest.mark.parametrize(("low_bytes", "num_run"), [(2**20, 2), (-(2**20), 4)])
def test_what_is_forecast_not_to_fit_with_margin_is_not_run(tmp_path: Path, low_bytes: float, num_run: int) -> None:
    sweep, executor = asked(tmp_path), FakeExecutor()
    results = run(sweep, sweep_folder(tmp_path / "sweeps", sweep), executor, forecasts=Predicting(low_bytes))
    assert len(executor.performed) == num_run
    kinds = [result.outcome.kind for result in results if result.labels["train.batch_size"] == "2"]
    assert set(kinds) == ({"predicted not to fit"} if num_run == 2 else {"done"})


def test_a_sweep_can_be_asked_to_run_what_does_not_fit(tmp_path: Path) -> None:
    sweep, executor = asked(tmp_path, skip_unfit=False), FakeExecutor()
    run(sweep, sweep_folder(tmp_path / "sweeps", sweep), executor, forecasts=Predicting(2**20))
    assert len(executor.performed) == 4


def test_progress_counts_trials_and_money(tmp_path: Path) -> None:
    sweep, heard = asked(tmp_path), list[tuple[int, int | None, float | None]]()

    class Listening(TrialWatcher):
        def ended(self, result: TrialResult, progress: Any) -> None:
            assert result.usd == pytest.approx(2 / 3600 * 7.2)
            heard.append((progress.num_ended, progress.num_planned, progress.usd))

    run(sweep, sweep_folder(tmp_path / "sweeps", sweep), FakeExecutor(), watcher=Listening(), usd_per_hour=7.2)
    assert [(num_ended, num_planned) for num_ended, num_planned, _ in heard] == [(number, 4) for number in (1, 2, 3, 4)]
    assert [usd for _, _, usd in heard] == pytest.approx([0.004, 0.008, 0.012, 0.016])


def test_limits_and_resources_are_those_of_the_file(tmp_path: Path) -> None:
    experiment = {**EXPERIMENT, "parallel": {"device": "cpu", "devices": 6}}
    resources = {"cpus": 2, "nodes": 2, "devices": 4}
    sweep = asked(tmp_path, experiment=experiment, limits={"seconds": 5, "host_gib": 0.5}, resources=resources)
    executor = FakeExecutor()
    run(sweep, sweep_folder(tmp_path / "sweeps", sweep), executor)
    task = executor.performed[0]
    assert dataclasses.asdict(task.limits) == {"seconds": 5, "host_bytes": 2**29}
    assert task.resources == Resources(num_devices=4, num_nodes=2, num_cpus=2, num_processes=3)
