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
from foretune.measure.bench_inference import InferenceChoices
from foretune.measure.bench_request import TrainingRequest
from foretune.measure.fresh_process import MeasurementFailed
from foretune.record.run_directory import RunDirectory
from foretune.studies import study_file
from foretune.studies.study_file import run_study_file
from foretune.studies.study_part import PartRequest
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
    """Stands in for fresh processes: remembers what they were asked, and leaves run directories as they would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, study: StudyAsked, studies: Path) -> None:
        self.study, self.studies, self.heard = study, studies, list[tuple[str, str]]()
        self.ends: dict[str, str | Exception] = {}
        monkeypatch.setattr(study_file, "ask_fresh_process", self.ask)
        monkeypatch.setattr(study_file, "bench_inference", self.bench)

    def ask(self, request: PartRequest, _: Observer) -> dict[str, Any]:
        folder = Path(request.folder or Path(str(request.run)).parent)
        place = str(folder.relative_to(self.studies / self.study.name))
        self.heard.append((request.do, place))
        end = self.ends.get(place, "finished")
        if isinstance(end, Exception):
            raise end
        if request.do == "evaluate":
            (Path(str(request.run)) / "quality").mkdir()
            (Path(str(request.run)) / "quality" / "evaluation.json").write_text("{}")
            return {}
        part = next(part for part in self.study.parts if self.studies / part.folder == folder)
        run = folder / f"2026-{len(self.heard):04d}" if request.do == "train" else Path(str(request.run))
        status = None if end == "killed" else end
        effective = {"data_fingerprint": "f", "study": request.about}
        if request.do == "train":
            make_run(run, [0.1] * 4, experiment=part.asked.experiment, status=status, effective=effective)  # type: ignore[arg-type]
        else:
            again = make_run(folder / "again", [0.1] * 4, experiment=part.asked.experiment)
            record = RunDirectory(again).read_record()
            assert record is not None
            RunDirectory(run).write_record(record)
        return {"run": str(run), "status": end, "reason": "a reason"}

    def bench(self, model: str, _: None, choices: InferenceChoices, benches: Path, __: Observer) -> None:
        self.heard.append(("bench", f"{choices.batch_size} {choices.precision} threads {choices.threads}"))
        path = benches / Path(model).name / "stamp" / "bench.json"
        path.parent.mkdir(parents=True)
        path.write_text("{}")


def test_every_part_is_trained_and_benched_in_turns_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, studies = asked(tmp_path), tmp_path / "studies"
    processes = Processes(monkeypatch, study, studies)
    done = run_study_file(study, studies, Observer())
    order = [place for do, place in processes.heard if do == "train"]
    assert order == [f"{name}/as-asked/seed-{seed}" for name, seed in (("one", 0), ("two", 0), ("two", 1), ("one", 1))]
    benches = [what for do, what in processes.heard if do == "bench"]
    assert benches == [f"256 fp32 threads {threads}" for threads in (1, 2, 2, 1)]
    assert not any(part.is_reused or part.problem for part in done)
    processes.heard.clear()
    again = run_study_file(study, studies, Observer())
    assert processes.heard == []
    assert all(part.is_reused for part in again)


def test_what_was_killed_goes_on_and_what_failed_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, studies, observer = asked(tmp_path, seeds=[0]), tmp_path / "studies", Recording()
    processes = Processes(monkeypatch, study, studies)
    processes.ends = {"one/as-asked/seed-0": "killed", "two/as-asked/seed-0": "out of memory"}
    first = run_study_file(study, studies, observer)
    assert [part.problem is None for part in first] == [False, False]
    assert "two, seed 0: out of memory: a reason. The study goes on." in observer.of("warning")
    processes.ends = {}
    processes.heard.clear()
    second = run_study_file(study, studies, observer)
    assert [do for do, _ in processes.heard] == ["resume", "bench", "train", "bench"]
    assert [part.problem for part in second] == [None, None]


def test_a_process_that_dies_ends_its_part_alone_and_a_refusal_ends_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, studies = asked(tmp_path, seeds=[0]), tmp_path / "studies"
    processes = Processes(monkeypatch, study, studies)
    processes.ends = {"one/as-asked/seed-0": MeasurementFailed("failed", "it died")}
    one, two = run_study_file(study, studies, Observer())
    assert "it died" in (one.problem or "")
    assert two.problem is None
    processes.ends = {"one/as-asked/seed-0": MeasurementFailed("refused", "no such folder")}
    with pytest.raises(MeasurementFailed, match="no such folder"):
        run_study_file(study, studies, Observer())


def test_quality_is_evaluated_where_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"protocol": "equal-time", "steps": None, "seconds": 2, "seeds": [0], "evaluate": {"metrics": ["psnr"]}}
    study, studies = asked(tmp_path, **changes), tmp_path / "studies"
    processes = Processes(monkeypatch, study, studies)
    run_study_file(study, studies, Observer())
    assert [do for do, _ in processes.heard] == ["train", "evaluate", "train", "evaluate"]
    processes.heard.clear()
    run_study_file(study, studies, Observer())
    assert processes.heard == []


def test_speeds_are_measured_by_the_bench_and_never_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, studies = asked(tmp_path, protocol="speed", synthetic_data=True, seeds=[0]), tmp_path / "studies"
    requests: list[TrainingRequest] = []
    ends = iter(("killed", "finished", "finished"))

    def ask(request: TrainingRequest, _: Observer) -> dict[str, Any]:
        requests.append(request)
        run = Path(request.directory) / request.folder / f"2026-{len(requests):04d}"
        experiment = understand(request.asked, source="test").experiment
        end = next(ends)
        status: Status | None = None if end == "killed" else "finished"
        make_run(run, [0.1] * 4, experiment=experiment, status=status, effective={"study": request.about})
        if end == "killed":
            raise MeasurementFailed("failed", "it died")
        return {"run": str(run)}

    monkeypatch.setattr(study_file, "ask_fresh_process", ask)
    first = run_study_file(study, studies, Observer())
    assert [part.problem is None for part in first] == [False, True]
    second = run_study_file(study, studies, Observer())
    assert [part.is_reused for part in second] == [False, True]
    assert all(request.is_synthetic for request in requests)
    assert [request.about and request.about["configuration"] for request in requests] == ["one", "two", "one"]
    assert summarise_study(studies / "hardware").protocol == "speed"


def test_runs_of_another_file_are_not_taken_for_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies = tmp_path / "studies"
    study = asked(tmp_path, seeds=[0])
    processes = Processes(monkeypatch, study, studies)
    run_study_file(study, studies, Observer())
    with pytest.raises(Refused, match=r"train.steps: there 4, now 5.*name: hardware-2"):
        run_study_file(asked(tmp_path, seeds=[0], steps=5), studies, Observer())
    elsewhere = {"model": "black-forest-labs/FLUX.1-dev", "data": {"kind": "shapes", "cache_dir": "/elsewhere"}}
    moved = asked(tmp_path, seeds=[0], experiment={**elsewhere, "parallel": {"device": "cpu"}})
    processes.heard.clear()
    run_study_file(moved, studies, Observer())
    assert processes.heard == [], "where files lie makes no other run"
