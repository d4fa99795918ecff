"""The SLURM executor against commands that answer what a test wants. A real cluster: `proofs/test_r10_slurm.py`."""

import json
import socket
from pathlib import Path

import pytest

from foretune.core.errors import UserError
from foretune.executors import task_files as files
from foretune.executors.executor import checked_options
from foretune.executors.outcome import TaskOutcome
from foretune.executors.slurm import SlurmExecutor
from foretune.executors.slurm_options import SlurmOptions, minutes_of
from foretune.executors.task import Limits, Resources, Task
from tests.executors import fake_slurm
from tests.executors.cluster_tasks import toy_task
from tests.executors.fake_slurm import FakeSlurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return fake_slurm.install(tmp_path / "slurm", monkeypatch)


def opened(**options: object) -> SlurmExecutor:
    return SlurmExecutor(checked_options("slurm", SlurmOptions, {"time": "10", "poll_s": 1e-9, **options}))


def submitted(executor: SlurmExecutor, task: Task) -> None:
    executor.submit(task)
    executor.close()


def begun(task: Task) -> None:
    """As a worker on a node that is gone now."""
    files.begin_attempt(task.folder)


def jobs_of(task: Task) -> list[str]:
    jobs: list[str] = json.loads((task.folder / "slurm_job.json").read_text())["jobs"]
    return jobs


def settled(executor: SlurmExecutor) -> list[str]:
    """After SLURM has reported the same twice."""
    return [*executor.ended(0.0), *executor.ended(0.0), *executor.ended(0.0)]


def test_options_and_resources_in_the_script(slurm: FakeSlurm, tmp_path: Path) -> None:
    executor = opened(
        time="1-02:30", partition="gpu,cpu", account="lab", qos="long", constraint="a100|h100", mem="64G",
        reservation="maintenance", exclude="n[1-3]", setup=("module load cuda",),
    )  # fmt: skip
    submitted(executor, toy_task(tmp_path, "square", resources=Resources(num_nodes=2, num_devices=4, num_cpus=32)))
    script = (slurm.folder / "script.sh").read_text()
    for line in (
        "--time=1590", "--partition=gpu,cpu", "--account=lab", "--qos=long", "--constraint='a100|h100'", "--mem=64G",
        "--reservation=maintenance", "--exclude='n[1-3]'", "--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4",
        "--cpus-per-task=8", "--requeue", "--signal=USR2@90", "--job-name=foretune",
    ):  # fmt: skip
        assert f"#SBATCH {line}\n" in script, line
    assert "\nmodule load cuda\n" in script


@pytest.mark.parametrize(("num_devices", "has_hint"), [(2, True), (0, False)])
def test_a_cluster_without_gpus_is_explained(
    slurm: FakeSlurm, tmp_path: Path, num_devices: int, has_hint: bool
) -> None:
    program = tmp_path / "slurm" / "programs" / "sbatch"
    program.write_text("#!/bin/bash\necho 'sbatch: error: Invalid generic resource (gres) specification' >&2\nexit 1\n")
    executor = opened()
    with pytest.raises(UserError, match=r"SLURM did not accept the jobs: .*Invalid generic resource") as refused:
        submitted(executor, toy_task(tmp_path, "square", resources=Resources(num_devices=num_devices)))
    assert (
        "Each task requests 2 GPUs. On nodes without GPUs, set parallel.device=cpu" in str(refused.value)
    ) == has_hint


def test_a_task_on_one_node_is_one_process(slurm: FakeSlurm, tmp_path: Path) -> None:
    submitted(opened(gres="gpu:a100:2"), toy_task(tmp_path, "square", resources=Resources(num_devices=2)))
    script = (slurm.folder / "script.sh").read_text()
    assert "--ntasks-per-node=1" in script
    assert "--gres=gpu:a100:2" in script
    assert "--gpus-per-node" not in script


def test_processes_of_a_task_on_several_nodes(slurm: FakeSlurm, tmp_path: Path) -> None:
    submitted(opened(), toy_task(tmp_path, "square", resources=Resources(num_nodes=2, num_processes=3)))
    script = (slurm.folder / "script.sh").read_text()
    assert "--nodes=2\n" in script
    assert "--ntasks-per-node=3\n" in script


def test_arrays_are_no_longer_than_the_cluster_takes(slurm: FakeSlurm, tmp_path: Path) -> None:
    executor = opened()
    tasks = [toy_task(tmp_path, "square", f"task-{number}", number=number) for number in range(6)]
    for task in tasks:
        executor.submit(task)
    executor.close()
    # The cluster's MaxArraySize is 4.
    assert [jobs_of(task) for task in tasks] == [["7_0"], ["7_1"], ["7_2"], ["7_3"], ["7_0"], ["7_1"]]


@pytest.mark.parametrize(
    ("state", "has_begun", "kind", "words"),
    [
        ("CANCELLED", True, "killed", "cancelled its SLURM job"),
        ("CANCELLED", False, "never started", "cancelled its SLURM job"),
        ("OUT_OF_MEMORY", True, "out of host memory", "memory"),
        ("FAILED", True, "crashed", "ended (FAILED) without an outcome"),
        ("COMPLETED", True, "crashed", "ended (COMPLETED) without an outcome"),
        ("TIMEOUT", True, "timed out", "time limit of its SLURM job passed"),
        ("NODE_FAIL", True, "killed", "its node failed"),
        ("PREEMPTED", True, "killed", "preempted"),
        ("FAILED", False, "never started", "before it began"),
    ],
)
def test_what_the_end_of_a_job_means_for_a_task(
    slurm: FakeSlurm, tmp_path: Path, state: str, has_begun: bool, kind: str, words: str
) -> None:
    executor, task = opened(), toy_task(tmp_path, "square", max_attempts=1)
    submitted(executor, task)
    if has_begun:
        begun(task)
    slurm.queue(f"7|N/A|{state}")
    assert executor.ended(0.0) == [], "a file server may show the outcome later"
    assert settled(executor) == ["task"]
    outcome = files.read_outcome(task.folder)
    assert outcome is not None
    assert outcome.kind == kind
    assert words in (outcome.reason or "")


def test_a_process_that_fails_before_the_first_one_begins_ends_the_task(slurm: FakeSlurm, tmp_path: Path) -> None:
    executor, task = opened(), toy_task(tmp_path, "ranks", max_attempts=5)
    submitted(executor, task)
    files.write_rank_failure(task.folder, 1, "crashed", "Process 1: ValueError: this rank fails")
    slurm.queue("7|N/A|FAILED")
    assert settled(executor) == ["task"]
    outcome = files.read_outcome(task.folder)
    assert outcome is not None
    assert (outcome.kind, outcome.reason) == ("crashed", "Process 1: ValueError: this rank fails")


@pytest.mark.parametrize("state", ["TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", None])
def test_an_interrupted_task_is_submitted_again(slurm: FakeSlurm, tmp_path: Path, state: str | None) -> None:
    executor, task = opened(), toy_task(tmp_path, "square", max_attempts=2)
    submitted(executor, task)
    begun(task)
    slurm.queue(*([] if state is None else [f"7|N/A|{state}"]))
    assert settled(executor) == []
    executor.close()
    assert jobs_of(task) == ["7", "7"]
    begun(task)
    assert settled(executor) == ["task"], "its second attempt is its last"


def test_accounting_knows_what_the_queue_has_forgotten(slurm: FakeSlurm, tmp_path: Path) -> None:
    executor, task = opened(), toy_task(tmp_path, "square")
    submitted(executor, task)
    begun(task)
    slurm.accounts("7|OUT_OF_MEMORY")
    assert settled(executor) == ["task"]
    outcome = files.read_outcome(task.folder)
    assert outcome is not None
    assert outcome.kind == "out of host memory"


def test_nothing_is_decided_while_slurm_does_not_answer(slurm: FakeSlurm, tmp_path: Path) -> None:
    executor, task = opened(), toy_task(tmp_path, "square")
    submitted(executor, task)
    begun(task)
    slurm.does_not_answer(is_so=True)
    assert settled(executor) == []
    assert jobs_of(task) == ["7"]
    slurm.does_not_answer(is_so=False)
    slurm.queue("7|N/A|RUNNING")
    assert settled(executor) == []


def test_an_outcome_counts_whatever_slurm_says(slurm: FakeSlurm, tmp_path: Path) -> None:
    executor, task = opened(), toy_task(tmp_path, "square")
    submitted(executor, task)
    files.write_outcome(task.folder, TaskOutcome(kind="done"))
    slurm.queue("7|N/A|NODE_FAIL")
    assert settled(executor) == ["task"]
    assert opened().ended(0.0) == []


def test_the_next_controller_finds_the_job(slurm: FakeSlurm, tmp_path: Path) -> None:
    task = toy_task(tmp_path, "square")
    submitted(opened(), task)
    slurm.queue("7|N/A|PENDING")
    num_arguments = len(slurm.srun_arguments())
    submitted(opened(), task)
    assert len(slurm.srun_arguments()) == num_arguments, "no second job"
    slurm.queue("7|N/A|CANCELLED")
    submitted(opened(), task)
    assert len(slurm.srun_arguments()) == 2 * num_arguments


def test_tasks_are_stopped_with_their_jobs(slurm: FakeSlurm, tmp_path: Path) -> None:
    executor, running, unsent = (
        opened(),
        toy_task(tmp_path, "square", "running"),
        toy_task(tmp_path, "square", "unsent"),
    )
    submitted(executor, running)
    begun(running)
    executor.stop("running")
    assert slurm.cancelled() == ["7"]
    executor.submit(unsent)
    executor.stop("unsent")
    assert executor.ended(0.0) == ["unsent"]
    slurm.queue("7|N/A|COMPLETED")
    assert settled(executor) == ["running"]
    outcomes = [files.read_outcome(task.folder) for task in (running, unsent)]
    assert [outcome.kind for outcome in outcomes if outcome is not None] == ["killed", "never started"]
    assert outcomes[0] is not None
    assert outcomes[0].host == socket.gethostname()


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("30", 30), ("90:30", 91), ("2:00:00", 120), ("0:00:01", 1), ("1-0", 1440), ("1-2:30", 1590), ("2-1:0:1", 2941)],
)
def test_times_as_slurm_writes_them(text: str, minutes: int) -> None:
    assert minutes_of(text) == minutes


def test_numbers_as_the_command_line_reads_them(tmp_path: Path) -> None:
    task = toy_task(tmp_path, "square")
    assert checked_options("slurm", SlurmOptions, {"time": 30, "jobs": "4"}).parameters(task)["time"] == 30


def test_a_job_needs_a_time_limit(slurm: FakeSlurm, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="time=2:00:00"):
        opened(time=None).submit(toy_task(tmp_path, "square"))
    task = toy_task(tmp_path, "square", limits=Limits(seconds=600.0))
    assert SlurmOptions(grace_s=30.0, signal_s=90).minutes(task) == 13
