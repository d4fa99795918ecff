"""The demonstration trains until there are enough steps, within a limit, and repeats where that fits."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from foretune.config.study_files import StudyAsked, StudyPart
from foretune.core.observer import Observer
from foretune.record.run_directory import RunDirectory
from foretune.studies.demo import running
from foretune.studies.demo.running import DemoRun, run_demo
from foretune.studies.study_file import PartDone
from tests.analyse.made_runs import make_run
from tests.sweeps.fake_executor import FakeExecutor


@dataclass
class Machine(Observer):
    """A machine on a clock of its own, which makes steps of a given length and starts each training in 5 s."""

    step_s: float
    is_busy: bool = False
    now_s: float = 0.0
    trained: list[StudyPart] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def message(self, text: str) -> None:
        self.said.append(text)

    def warning(self, text: str) -> None:
        self.said.append(text)

    def run(self, asked: StudyAsked, studies: Path, *_: object) -> tuple[PartDone, ...]:
        return tuple(self._train(part, studies) for part in asked.parts)

    def _train(self, part: StudyPart, studies: Path) -> PartDone:
        limit_s = part.asked.experiment.train.seconds
        assert limit_s is not None
        num = max(1, round(limit_s / self.step_s))
        path = make_run(studies / part.folder / "run", [self.step_s] * num, experiment=part.asked.experiment)
        record = RunDirectory(path).read_record()
        assert record is not None
        measured = record.measured.model_copy(update={"counted_s": num * self.step_s})
        RunDirectory(path).write_record(record.model_copy(update={"measured": measured}))
        self.trained.append(part)
        self.now_s += 5 + num * self.step_s
        return PartDone(part, path, is_reused=False)


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], DemoRun]:
    def run(machine: Machine) -> DemoRun:
        monkeypatch.setattr(running, "run_study_file", machine.run)
        begin_s, is_busy = machine.now_s, machine.is_busy
        return run_demo(
            tmp_path, machine, None, FakeExecutor(), begin_s=begin_s, is_busy=is_busy, now=lambda: machine.now_s
        )

    return run


def seeds(machine: Machine) -> set[int]:
    return {part.seed for part in machine.trained}


def test_three_seeds_where_they_fit(demo: Callable[[Machine], DemoRun], tmp_path: Path) -> None:
    machine = Machine(step_s=0.05)
    made = demo(machine)
    assert seeds(machine) == {0, 1, 2}
    assert machine.now_s <= running.WHOLE_S
    assert made.folder == tmp_path / "demo"
    assert [one.part for one in made.done] == machine.trained
    assert machine.said == []


def test_one_run_each_where_they_do_not(demo: Callable[[Machine], DemoRun], monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(step_s=0.05)
    monkeypatch.setattr(running, "WHOLE_S", 60.0)
    demo(machine)
    assert seeds(machine) == {0}
    assert any(text.startswith("One run each: ") for text in machine.said)


def test_too_few_steps_are_trained_again_for_longer(demo: Callable[[Machine], DemoRun], tmp_path: Path) -> None:
    """12 s are 24 steps of half a second; 50 take 25 s."""
    machine = Machine(step_s=0.5)
    made = demo(machine)
    assert made.folder == tmp_path / "demo-33s"
    assert all(one.part.asked.experiment.train.seconds == 33 for one in made.done)
    assert any("made 24 of 50. Training each again for 33 s (at most 60 s)" in text for text in machine.said)
    assert not any("Nothing is called better" in text for text in machine.said)


def test_a_busy_machine_gets_more_time_at_once(demo: Callable[[Machine], DemoRun], tmp_path: Path) -> None:
    """42 steps in 12 s were measured beside a busy loop on each core; in 20 s they are enough, without a second try."""
    machine = Machine(step_s=12 / 42, is_busy=True)
    made = demo(machine)
    assert made.folder == tmp_path / "demo"
    assert {part.asked.experiment.train.seconds for part in machine.trained} == {20}
    assert not any("Not enough steps" in text for text in machine.said)


@pytest.mark.parametrize(("first_is_busy", "seconds"), [(True, 20), (False, 12)])
def test_a_second_demonstration_has_the_length_of_the_first(
    first_is_busy: bool, seconds: int, demo: Callable[[Machine], DemoRun], tmp_path: Path
) -> None:
    """Else its runs would be another question than those that are there, and be refused."""
    demo(Machine(step_s=0.05, is_busy=first_is_busy))
    shutil.rmtree(tmp_path / "demo")  # the stand-in for a machine cannot reuse runs
    machine = Machine(step_s=0.05, is_busy=not first_is_busy)
    demo(machine)
    assert {part.asked.experiment.train.seconds for part in machine.trained} == {seconds}


def test_the_limit_is_kept_and_said(demo: Callable[[Machine], DemoRun], tmp_path: Path) -> None:
    """One step of 14 s: as on two cores whose threads spin beside other processes."""
    machine = Machine(step_s=14.0)
    made = demo(machine)
    assert made.folder == tmp_path / "demo-60s"
    assert {part.asked.experiment.train.seconds for part in machine.trained} == {12, 60}
    assert machine.said[-1].startswith("Not enough steps on this machine: ")
    assert machine.said[-1].endswith("Nothing is called better or worse.")
    assert seeds(machine) == {0}
