"""`foretune data encode`, as a person types it: what it prints, what it refuses, what it leaves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.executors import executor as executors
from foretune.executors.outcome import TaskOutcome
from foretune.executors.task_files import write_outcome, write_task
from tests.cli.conftest import Foretune
from tests.training.encoded_runs import InThisProcess, pictures, written


class FailsAtFirst(InThisProcess):
    """The first part runs out of memory, once."""

    has_failed = False

    def submit(self, task: Any) -> None:
        if self.has_failed or task.name != "000000":
            super().submit(task)
            return
        FailsAtFirst.has_failed = True
        write_task(task)
        write_outcome(task.folder, TaskOutcome(kind="out of device memory", reason="no memory", num_attempts=1))
        self._ended.append(task.name)


@pytest.fixture
def experiment(tmp_path: Path, tiny_pipeline: Callable[..., Path]) -> Path:
    data = {"kind": "folder", "path": str(pictures(tmp_path / "pictures", 4)), "resolution": 32,
            "cache_dir": str(tmp_path / "cache"), "max_text_tokens": 16}  # fmt: skip
    return written(tmp_path / "e.yaml", tiny_pipeline("sd3"), tmp_path, data=data)


def test_failed_parts_are_reported_and_the_same_command_continues(
    foretune: Foretune, experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "open_executor", lambda *_: FailsAtFirst())
    command = ("data", "encode", str(experiment), str(tmp_path / "set"), "--workers", "2", "--part-size", "4")
    failed = foretune(*command)
    assert failed.returncode == 1
    assert "4 samples in 2 parts, 2 at once, executor local" in failed.stderr
    assert "Part 000000: out of device memory. no memory Log: " in failed.stdout
    assert "Run the same command again." in failed.stdout
    done = foretune(*command)
    assert done.returncode == 0, done.stderr
    assert "part prompts: finished earlier" in done.stderr
    assert "part 000000: done" in done.stderr
    assert ": 4 samples in 2 shards, " in done.stdout
    assert f"foretune train {experiment} data.encoded={tmp_path / 'set'}" in done.stdout
    assert {path.name for path in (tmp_path / "set").glob("*.tar")} == {"000000-000000.tar", "prompts-000000.tar"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("https://host/set",), "can only be read"),
        (("s3://user:secret@bucket/set",), "has a user name or password"),
        (("set", "--executor", "sky"), "executor"),
        (("set", "data.resolution=nine"), "data.resolution"),
    ],
)
def test_what_cannot_be_encoded_is_refused(
    foretune: Foretune, experiment: Path, arguments: tuple[str, ...], words: str
) -> None:
    answer = foretune("data", "encode", str(experiment), *arguments)
    assert answer.returncode == 2
    assert words in answer.stderr
    assert "secret" not in answer.stderr


def test_a_model_without_an_autoencoder_has_nothing_to_encode(
    foretune: Foretune, tmp_path: Path, tiny_pipeline: Callable[..., Path]
) -> None:
    experiment = written(tmp_path / "e.yaml", tiny_pipeline("ddpm"), tmp_path)
    answer = foretune("data", "encode", str(experiment), str(tmp_path / "set"))
    assert answer.returncode == 2
    assert "have no autoencoder and train on pixels" in answer.stderr
