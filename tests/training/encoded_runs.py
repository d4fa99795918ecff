"""Encoded sets of tiny models, made in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from foretune.config.reading import Asked, read_experiment
from foretune.core.observer import Observer
from foretune.data.shards import Manifest, ShardLimits
from foretune.executors.outcome import TaskOutcome
from foretune.executors.state import read_state
from foretune.executors.task import Resources, Task
from foretune.executors.task_files import write_answer, write_outcome, write_task
from foretune.training.encoded_sets import part_worker
from foretune.training.encoded_sets.controller import EncodeController, PartResult
from foretune.training.encoded_sets.job import claim, planned_job
from tests.training.short_runs import short_mapping

PART_SIZE = 5
CAPTIONS = ("a cat", "a dog", "")


def pictures(folder: Path, num: int = 12) -> Path:
    """Images of several shapes, some with equal captions."""
    folder.mkdir()
    for number in range(num):
        size = (40 + 8 * (number % 3), 48)
        colour = (number * 20 % 256, number * 7 % 256, 255 - number * 20 % 256)
        image = Image.new("RGB", size, colour)
        image.paste((0, 0, 0), (number, 4, number + 9, 20))
        image.save(folder / f"{number:02d}.png")
        (folder / f"{number:02d}.txt").write_text(CAPTIONS[number % 3])
    return folder


def written(path: Path, model: Path, work: Path, **sections: Any) -> Path:
    """An experiment file, with the cache in `work`."""
    path.write_text(yaml.safe_dump(short_mapping(model, work, **sections)))
    return path


class InThisProcess:
    """An executor that performs tasks where they are submitted."""

    name = "local"
    num_slots: int | None = 1

    def __init__(self, perform: Callable[..., dict[str, Any]] = part_worker.perform) -> None:
        self._perform = perform
        self._ended: list[str] = []
        self.performed: list[str] = []
        self.notes: list[str] = []

    def submit(self, task: Task) -> None:
        if read_state(task.folder).outcome is None:
            write_task(task)
            self.performed.append(task.name)
            write_answer(task.folder, self._perform(task.request, Observer()))
            write_outcome(task.folder, TaskOutcome(kind="done", num_attempts=1, seconds=1.0))
        self._ended.append(task.name)

    def ended(self, timeout_s: float | None) -> list[str]:
        names, self._ended = self._ended, []
        return names

    def stop(self, name: str) -> None:
        raise AssertionError(f"nobody stops {name}")

    def close(self) -> None:
        """Nothing is held."""


def encode(
    experiment: Path,
    place: Path,
    *changes: str,
    part_size: int = PART_SIZE,
    executor: Any = None,
    limits: ShardLimits = ShardLimits(max_samples=3),  # noqa: B008 - frozen
    on_part: Callable[[PartResult, Any], object] = lambda _result, _progress: None,
) -> Manifest | None:
    """What `foretune data encode` does, in parts of five samples and shards of three."""
    asked = asked_of(experiment, *changes)
    job = planned_job(asked, str(place), part_size, limits, Observer())
    claim(job)
    return EncodeController(
        job=job,
        tasks=place.with_name(f"{place.name}.tasks"),
        executor=executor or InThisProcess(),
        resources=Resources(),
        on_part=on_part,
    ).run()


def asked_of(experiment: Path, *changes: str) -> Asked:
    return read_experiment(experiment, changes)


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a set."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
