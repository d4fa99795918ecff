"""Study files are run part by part: nothing twice, nothing lost, and what failed is said."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune.analyse.study_summary import summarise_study
from foretune.config.reading import understand
from foretune.config.study_files import StudyAsked, read_study
from foretune.core.errors import Refused
from foretune.core.observer import Observer
from foretune.core.values.run_record import Status
from foretune.executors.outcome import TaskOutcome
from foretune.executors.task import Task
from foretune.executors.task_files import read_task, write_outcome, write_task
from foretune.measure.bench_inference import InferenceChoices
from foretune.record.run_directory import RunDirectory
from foretune.studies.study_file import run_study_file
from foretune.sweeps.trial_request import TrialRequest, finished_run
from tests.analyse.made_runs import make_run
from tests.training.short_runs import Recording


def asked(tmp_path: Path, **changes: Any) -> StudyAsked:
    mapping = {
        "protocol": "equal-steps",
        "experiment": {"model": "flux.1-dev", "data": {"kind": "shapes"}, "parallel": {"device": "cpu"}},
        "steps": 4,
        "seeds": [0, 1],
        "configurations": {"one": {"parallel.threads": 1}, "two": {"parallel.threads": 2}},
        **changes,
    }
    path = tmp_path / "hardware.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in mapping.items() if v is not None}, sort_keys=False))
    return read_study(path)


class Processes:
    """Stands in for an executor: remembers what it was requested, and leaves run directories as trials would."""

    name = "local"
    num_slots: int | None = 1

    def __init__(self, study: StudyAsked, studies: Path) -> None:
        self.study, self.studies, self.heard = study, studies, list[tuple[str, str]]()
        self.ends: dict[str, TaskOutcome | Status] = {}
        """By part: how its training ends; an outcome of a process that left no run directory."""
        self.requests: list[TrialRequest] = []
        self._ended: list[str] = []
        self.notes: list[str] = []

    def submit(self, task: Task) -> None:
        write_task(task)
        request = TrialRequest(**read_task(task.folder).request)
        self.requests.append(request)
        write_outcome(task.folder, self._performed(request))
        self._ended.append(task.name)

    def ended(self, timeout_s: float | None) -> list[str]:
        names, self._ended = self._ended, []
        return names

    def stop(self, name: str) -> None:
        raise AssertionError(f"nobody stops {name}")

    def close(self) -> None:
        """Nothing is held."""

    def _performed(self, request: TrialRequest) -> TaskOutcome:
        folder = Path(request.folder)
        place = str(folder.relative_to(self.studies / self.study.name))
        end = self.ends.get(place, "finished")
        if isinstance(end, TaskOutcome):
            return end
        run = finished_run(folder)
        if run is None:
            self.heard.append(("train", place))
            experiment = understand(request.experiment, source="test").experiment
            effective = {"data_fingerprint": "f", **request.about}
            path = folder / f"2026-{len(self.heard):04d}"
            run = RunDirectory(make_run(path, [0.1] * 4, experiment=experiment, status=end, effective=effective))
        if end != "finished":
            return TaskOutcome(kind="out of host memory", reason="a reason")
        if request.evaluation is not None:
            self.heard.append(("evaluate", place))
            (run.path / "quality").mkdir(exist_ok=True)
            (run.path / "quality" / "evaluation.json").write_text("{}")
        if request.inference is not None:
            choices = InferenceChoices(**request.inference)
            self.heard.append(("bench", f"{choices.batch_size} {choices.precision} threads {choices.threads}"))
            bench = folder / "inference" / run.path.name / "stamp" / "bench.json"
            bench.parent.mkdir(parents=True)
            bench.write_text("{}")
        return TaskOutcome(kind="done")


KILLED = TaskOutcome(kind="killed", reason="The process was ended by SIGKILL.")


def test_every_part_is_trained_and_benched_in_turns_and_once(tmp_path: Path) -> None:
    study, studies = asked(tmp_path), tmp_path / "studies"
    processes = Processes(study, studies)
    done = run_study_file(study, studies, processes, Observer())
    order = [place for do, place in processes.heard if do == "train"]
    assert order == [f"{name}/as-asked/seed-{seed}" for name, seed in (("one", 0), ("two", 0), ("two", 1), ("one", 1))]
    benches = [what for do, what in processes.heard if do == "bench"]
    assert benches == [f"256 fp32 threads {threads}" for threads in (1, 2, 2, 1)]
    assert not any(part.is_reused or part.problem for part in done)
    processes.heard.clear()
    again = run_study_file(study, studies, processes, Observer())
    assert processes.heard == []
    assert all(part.is_reused for part in again)


def test_what_failed_is_reported_and_tried_again(tmp_path: Path) -> None:
    study, studies, observer = asked(tmp_path, seeds=[0]), tmp_path / "studies", Recording()
    processes = Processes(study, studies)
    processes.ends = {"one/as-asked/seed-0": KILLED, "two/as-asked/seed-0": "out of memory"}
    first = run_study_file(study, studies, processes, observer)
    assert [part.problem is None for part in first] == [False, False]
    assert [part.run is None for part in first] == [True, False]
    (_, warning) = observer.of("warning")
    assert warning.startswith("two, seed 0: out of host memory: a reason. The study goes on. Log: ")
    processes.ends = {}
    processes.heard.clear()
    second = run_study_file(study, studies, processes, observer)
    assert [do for do, _ in processes.heard] == ["train", "bench", "train", "bench"]
    assert [part.problem for part in second] == [None, None]


def test_a_process_that_dies_ends_its_part_alone_and_a_refusal_ends_the_study(tmp_path: Path) -> None:
    study, studies = asked(tmp_path, seeds=[0]), tmp_path / "studies"
    processes = Processes(study, studies)
    processes.ends = {"one/as-asked/seed-0": KILLED}
    one, two = run_study_file(study, studies, processes, Observer())
    assert "ended by SIGKILL" in (one.problem or "")
    assert two.problem is None
    processes.ends = {"one/as-asked/seed-0": TaskOutcome(kind="refused", reason="no such folder")}
    with pytest.raises(Refused, match="no such folder"):
        run_study_file(study, studies, processes, Observer())


def test_quality_is_evaluated_where_it_was_asked_for(tmp_path: Path) -> None:
    changes = {"protocol": "equal-time", "steps": None, "seconds": 2, "seeds": [0], "evaluate": {"metrics": ["psnr"]}}
    study, studies = asked(tmp_path, **changes), tmp_path / "studies"
    processes = Processes(study, studies)
    run_study_file(study, studies, processes, Observer())
    assert [do for do, _ in processes.heard] == ["train", "evaluate", "train", "evaluate"]
    processes.heard.clear()
    run_study_file(study, studies, processes, Observer())
    assert processes.heard == []


def test_speeds_are_measured_without_images(tmp_path: Path) -> None:
    study, studies = asked(tmp_path, protocol="speed", synthetic_data=True, seeds=[0]), tmp_path / "studies"
    processes = Processes(study, studies)
    processes.ends = {"one/as-asked/seed-0": KILLED}
    first = run_study_file(study, studies, processes, Observer())
    assert [part.problem is None for part in first] == [False, True]
    processes.ends = {}
    second = run_study_file(study, studies, processes, Observer())
    assert [part.is_reused for part in second] == [False, True]
    assert [(request.measure, request.is_synthetic) for request in processes.requests] == [("speed", True)] * 3
    assert [request.about["study"]["configuration"] for request in processes.requests] == ["one", "two", "one"]
    assert summarise_study(studies / "hardware").protocol == "speed"


def test_runs_of_another_file_are_not_taken_for_this_one(tmp_path: Path) -> None:
    studies = tmp_path / "studies"
    study = asked(tmp_path, seeds=[0])
    processes = Processes(study, studies)
    run_study_file(study, studies, processes, Observer())
    with pytest.raises(Refused, match=r"train.steps: there 4, now 5.*name: hardware-2"):
        run_study_file(asked(tmp_path, seeds=[0], steps=5), studies, processes, Observer())
    elsewhere = {"model": "black-forest-labs/FLUX.1-dev", "data": {"kind": "shapes", "cache_dir": "/elsewhere"}}
    moved = asked(tmp_path, seeds=[0], experiment={**elsewhere, "parallel": {"device": "cpu"}})
    processes.heard.clear()
    run_study_file(moved, studies, processes, Observer())
    assert processes.heard == [], "where files lie makes no other run"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"experiment": {"model": "flux.1-schnell", "data": {"kind": "shapes"}}},
            'model: there "flux.1-dev", now "flux',
        ),
        ({"inference": {"batch_size": 8}}, 'inference: there {"batch_size": 256'),
        ({"fixtures": {"images": 4}}, "images: there null, now 4"),
    ],
)
def test_runs_that_measured_something_else_are_not_taken_for_this_study(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    studies, study = tmp_path / "studies", asked(tmp_path, seeds=[0])
    processes = Processes(study, studies)
    run_study_file(study, studies, processes, Observer())
    with pytest.raises(Refused) as refused:
        run_study_file(asked(tmp_path, seeds=[0], **changes), studies, processes, Observer())
    assert words in str(refused.value)


def test_an_evaluation_is_added_to_runs_without_one_and_never_taken_for_another(tmp_path: Path) -> None:
    studies = tmp_path / "studies"
    timed: dict[str, Any] = {"protocol": "equal-time", "steps": None, "seconds": 2, "seeds": [0]}
    study = asked(tmp_path, **timed)
    processes = Processes(study, studies)
    run_study_file(study, studies, processes, Observer())
    run_study_file(asked(tmp_path, **timed, evaluate={"metrics": ["psnr"]}), studies, processes, Observer())
    assert [do for do, _ in processes.heard] == ["train", "train", "evaluate", "evaluate"]
    evaluated = asked(tmp_path, **timed, name="other", evaluate={"metrics": ["psnr"]})
    processes = Processes(evaluated, studies)
    run_study_file(evaluated, studies, processes, Observer())
    other = asked(tmp_path, **timed, name="other", evaluate={"metrics": ["ssim"]})
    with pytest.raises(Refused, match="evaluate: there"):
        run_study_file(other, studies, processes, Observer())
