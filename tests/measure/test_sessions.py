"""Benchmarks and profiles are sessions of the same kind as trainings, and their directories pass the same check."""

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.accelerator.copies import NumbersToRead
from foretune.analyse.run_data import read_run
from foretune.analyse.run_numbers import speed
from foretune.measure.bench_request import TrainingRequest
from foretune.measure.bench_worker import measure_training
from foretune.measure.profiling import NUM_STEPS_BEFORE, profile
from foretune.record.checking import check_run
from foretune.record.run_directory import RunDirectory
from foretune.stats.speed import median_step_s, samples_per_s
from foretune.training import meter as meter_module
from tests.training.short_runs import Recording, events_of, short_asked, short_mapping, short_run

TinyPipeline = Callable[..., Path]


class ArrivesWhenWaitedFor(NumbersToRead):
    """Numbers that arrive only when somebody waits for them."""

    is_there = False

    def have_arrived(self) -> bool:
        return self.is_there

    def wait(self) -> None:
        super().wait()
        self.is_there = True


@pytest.fixture
def slow_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """No number arrives while the steps are made."""
    monkeypatch.setattr(meter_module, "NumbersToRead", ArrivesWhenWaitedFor)


@pytest.mark.usefixtures("slow_device")
def test_a_bench_reads_what_the_device_owes(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    asked = short_mapping(tiny_pipeline("flux"), tmp_path)
    request = TrainingRequest(asked=asked, directory=str(tmp_path / "bench"), is_synthetic=True)
    run = RunDirectory.open(measure_training(request, Recording()))
    record = run.read_record()
    assert record is not None
    assert record.measured.num_step_times == asked["train"]["steps"]
    assert [event["step"] for event in events_of(run, "step")] == list(range(asked["train"]["steps"]))


@pytest.mark.usefixtures("slow_device")
def test_a_profile_reads_what_the_device_owes(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    run = profile(short_asked(tiny_pipeline("flux"), tmp_path), tmp_path / "runs", 2, Recording())
    record = run.read_record()
    assert record is not None
    assert record.measured.num_step_times == NUM_STEPS_BEFORE
    assert record.measured.last_loss is not None


def test_profiled_steps_are_not_counted_as_speed(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    """Neither in a profile nor in a training that profiles some of its steps; the check of a directory agrees."""
    profiled = profile(short_asked(tiny_pipeline("flux"), tmp_path), tmp_path / "profiles", 2, Recording())
    look = {"at_step": 3, "steps": 2}
    trained = short_run(tiny_pipeline("flux"), tmp_path, train={"steps": 8}, profile=look).run
    # The trace is written while the step after is waited for.
    for run, counted in ((profiled, range(NUM_STEPS_BEFORE)), (trained, (0, 1, 5, 6, 7))):
        record = run.read_record()
        assert record is not None
        times_s = {event["step"]: event["step_s"] for event in events_of(run, "step")}
        measured = record.measured
        assert measured.num_step_times == len(counted)
        warm_s = [times_s[step] for step in counted][measured.num_warmup_steps :]
        assert measured.median_step_s == pytest.approx(statistics.median(warm_s))
        # A report says the same as the record.
        assert speed(read_run(run.path)) == pytest.approx(measured.samples_per_s)
        assert check_run(run.path).faults == ()


def test_a_benchmark_passes_the_check_of_its_directory(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    asked = short_mapping(tiny_pipeline("flux"), tmp_path)
    request = TrainingRequest(asked=asked, directory=str(tmp_path / "bench"), is_synthetic=True)
    checked = check_run(measure_training(request, Recording()))
    assert checked.faults == ()
    assert checked.num_steps == asked["train"]["steps"]


def test_records_of_earlier_releases_that_count_profiled_steps_pass_the_check(
    tiny_pipeline: TinyPipeline, tmp_path: Path
) -> None:
    look = {"at_step": 3, "steps": 2}
    trained = short_run(tiny_pipeline("flux"), tmp_path, train={"steps": 8}, profile=look)
    times_s = [event["step_s"] for event in events_of(trained.run, "step")]
    num_warmup, per_step = 2, trained.run.read_experiment()[1].samples_per_step()
    older = trained.record.measured.model_copy(
        update={
            "num_step_times": len(times_s),
            "num_warmup_steps": num_warmup,
            "median_step_s": median_step_s(times_s, num_warmup=num_warmup),
            "samples_per_s": samples_per_s(times_s, per_step, num_warmup=num_warmup),
        }
    )
    trained.run.remove_record()
    trained.run.write_record(trained.record.model_copy(update={"measured": older}))
    assert check_run(trained.run.path).faults == ()
