"""Encodes a set through an executor: submits its parts, watches them, and makes their shards a set at the end.

It holds nothing that the folders of the parts and the set itself do not: killed at any moment and started again, it
continues.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from foretune.core.errors import UserError
from foretune.data.encoded import HOLDS
from foretune.data.shards import Manifest, Retry, ShardEntry, open_store, write_manifest
from foretune.executors.executor import Executor
from foretune.executors.outcome import TaskOutcome
from foretune.executors.reopening import reopen
from foretune.executors.state import read_state
from foretune.executors.task import Resources, Task
from foretune.executors.task_files import read_answer
from foretune.record.locking import try_lock
from foretune.record.progress_file import read_progress
from foretune.training.encoded_sets.job import EncodeJob
from foretune.training.encoded_sets.parts import WORKER

_LOOK_EVERY_S = 1.0
_MOST_KILLS = 3
"""After which a part that is killed is a failure in this start."""


@dataclass(frozen=True, kw_only=True)
class EncodeProgress:
    """Where the encoding stands."""

    num_done: int
    num_samples: int
    samples_per_s: float | None
    """None before anything was encoded."""
    left_s: float | None
    num_parts_done: int
    num_parts: int


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """How a part ended."""

    name: str
    num_samples: int
    outcome: TaskOutcome
    folder: Path
    is_reused: bool
    """Whether an earlier start had finished it."""
    is_repeated: bool = False
    """Whether it was killed and is performed again."""


@dataclass(kw_only=True)
class EncodeController:
    """One start of an encoding."""

    job: EncodeJob
    tasks: Path
    """The folder of the parts' folders; all machines see it."""
    executor: Executor
    resources: Resources
    on_part: Callable[[PartResult, EncodeProgress], object] = lambda _result, _progress: None
    on_look: Callable[[EncodeProgress], object] = lambda _progress: None
    """Called about once a second."""
    retry: Retry = field(default_factory=Retry)
    worker: str = WORKER
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.folder = self.tasks / self.job.content
        self.results: dict[str, PartResult] = {}
        self._parts = dict(self.job.parts(self.folder.absolute()))
        self._running: dict[str, int] = {}
        """How often each part was started."""

    def run(self) -> Manifest | None:
        """Returns the manifest; None where a part failed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            self._began_s = self.now()
            for name in self._parts:
                self._submit_unless_done(name)
            self._num_before = self._num_done()
            while self._running:
                for name in self.executor.ended(_LOOK_EVERY_S):
                    self._ended(name)
                self.on_look(self.progress())
            if any(result.outcome.kind != "done" for result in self.results.values()):
                return None
            return self._make_a_set()

    def progress(self) -> EncodeProgress:
        num_done, elapsed_s = self._num_done(), self.now() - self._began_s
        num_samples = self.job.facts.num_samples
        num_encoded = num_done - (num_done if self._num_before is None else self._num_before)
        rate = num_encoded / elapsed_s if num_encoded > 0 and elapsed_s > 0 else None
        return EncodeProgress(
            num_done=num_done,
            num_samples=num_samples,
            samples_per_s=rate,
            left_s=None if rate is None else (num_samples - num_done) / rate,
            num_parts_done=len(self.results),
            num_parts=len(self._parts),
        )

    _began_s = 0.0
    _num_before: int | None = None

    def _num_done(self) -> int:
        done = sum(result.num_samples for result in self.results.values() if result.outcome.kind == "done")
        for name in self._running:
            progress = read_progress(self.folder / name)
            part = self._parts[name]
            done += 0 if progress is None else min(progress[1], part.end - part.first)
        return done

    def _submit_unless_done(self, name: str) -> None:
        folder = self.folder / name
        outcome = read_state(folder).outcome
        if outcome is not None:
            if outcome.kind == "done" and self._is_stored(folder):
                self._keep(name, outcome, is_reused=True)
                return
            # It failed before, or its shards are gone. What is left of them is found by the worker.
            reopen(folder)
        self._submit(name)

    def _submit(self, name: str) -> None:
        part = self._parts[name]
        self._running[name] = self._running.get(name, 0) + 1
        task = Task(
            name=name,
            worker=self.worker,
            request=part.to_mapping(),
            folder=self.folder / name,
            resources=self.resources,
            max_attempts=_MOST_KILLS,
        )
        self.executor.submit(task)

    def _ended(self, name: str) -> None:
        folder = self.folder / name
        outcome = read_state(folder).outcome
        assert outcome is not None, "the executor reports tasks that have one"
        if outcome.kind == "killed" and self._running[name] < _MOST_KILLS:
            self.on_part(self._result(name, outcome, is_repeated=True), self.progress())
            reopen(folder)
            self._submit(name)
            return
        del self._running[name]
        self._keep(name, outcome, is_reused=False)

    def _keep(self, name: str, outcome: TaskOutcome, *, is_reused: bool) -> None:
        self.results[name] = self._result(name, outcome, is_reused=is_reused)
        self.on_part(self.results[name], self.progress())

    def _result(
        self, name: str, outcome: TaskOutcome, *, is_reused: bool = False, is_repeated: bool = False
    ) -> PartResult:
        part = self._parts[name]
        return PartResult(
            name=name,
            num_samples=part.end - part.first,
            outcome=outcome,
            folder=self.folder / name,
            is_reused=is_reused,
            is_repeated=is_repeated,
        )

    def _is_stored(self, folder: Path) -> bool:
        """Whether the shards of a part are where they were written. Their content is verified where it is read."""
        store = open_store(self.job.base.place)
        for shard in self._shards(folder):
            sizes = {shard.name: shard.num_bytes, shard.index_name: shard.index_bytes}
            for name, num_bytes in sizes.items():
                found = self.retry.call(f"The file {store.where(name)}", lambda name=name: store.num_bytes(name))  # type: ignore[misc]
                if found != num_bytes:
                    return False
        return True

    @staticmethod
    def _shards(folder: Path) -> list[ShardEntry]:
        return [ShardEntry(**fields) for fields in read_answer(folder)["shards"]]

    def _make_a_set(self) -> Manifest:
        shards = [shard for name in self._parts for shard in self._shards(self.folder / name)]
        return write_manifest(open_store(self.job.base.place), shards, holds=HOLDS, retry=self.retry)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.folder / "controller.lock").open("w") as file:
            if not try_lock(file.fileno()):
                raise UserError(f"Another process encodes into {self.job.base.place}. Wait for it.")
            yield
