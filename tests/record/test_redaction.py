"""Every writer takes secrets out by itself: each is seen to, with the others out of the way.

Two layers, neither of which does the other's work. What has fields is redacted before it becomes text: a secret that
YAML folds over two lines, or that JSON puts behind an escaped end of line, is not found in the text. What is written as
a file is redacted as text once more, because reports, evaluations and results of benchmarks come as text.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune.choices.experiment import Experiment
from foretune.core.values import RunRecord
from foretune.record import atomic, run_directory
from foretune.record.atomic import write_text
from foretune.record.environment import environment_fingerprint, environment_hash
from foretune.record.events import EventLog
from foretune.record.redaction import MARK, redacted_text
from foretune.record.run_directory import RunDirectory
from foretune.training.trackers.tracker import settings_of
from tests.core.formats import frozen_file

SECRET = "zQ8vXw3kLm5tRb7n"
PRIVATE_KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----"
ASKED: dict[str, Any] = {
    "model": "flux.1-dev",
    "data": {"kind": "shapes"},
    "train": {"steps": 10},
    # YAML folds lines at about 80 columns: in some of these prompts within the words that mark a key.
    "validate": {"prompts": [f"{'a ' * num_words}{PRIVATE_KEY}" for num_words in range(24, 40)]},
}
EXPERIMENT = Experiment.model_validate(ASKED)
RECORD = RunRecord.from_json(frozen_file("RunRecord", 1).read_text(encoding="utf-8"))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs", "redacted")


@pytest.fixture
def without_text_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "redacted_text", lambda text: text)


def test_a_file_of_text(tmp_path: Path) -> None:
    write_text(tmp_path / "report.md", f"token={SECRET}")
    assert (tmp_path / "report.md").read_text() == f"token={MARK}"


@pytest.mark.usefixtures("without_text_layer")
def test_an_experiment_by_its_fields(run: RunDirectory) -> None:
    run.write_experiment(ASKED, EXPERIMENT, {"hub_token": "a b c"})
    text = (run.path / "experiment.yaml").read_text()
    assert SECRET not in text
    assert yaml.safe_load(text)["effective"] == {"hub_token": MARK}


@pytest.mark.usefixtures("without_text_layer")
def test_a_record_by_its_fields(run: RunDirectory) -> None:
    outcome = RECORD.outcome.model_copy(update={"reason": f"password:\n{SECRET}"})
    run.write_record(RECORD.model_copy(update={"outcome": outcome}))
    assert SECRET not in (run.path / "record.json").read_text()


def test_the_layer_of_fields_is_needed(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the layer of text alone lets these secrets through."""
    monkeypatch.setattr(run_directory, "redacted", lambda value: value)
    run.write_experiment(ASKED, EXPERIMENT, {})
    assert SECRET in (run.path / "experiment.yaml").read_text()


def test_an_event(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("warning", text=f"password:\n{SECRET}")
    log.close()
    assert SECRET not in (tmp_path / "events.jsonl").read_text()


def test_the_environment_and_its_hash(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is recorded may quote one that is not; the hash is that of what is written."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("MALLOC_CONF", f"prof_prefix:/tmp/{SECRET}")
    found = environment_fingerprint()
    assert found["variables"]["MALLOC_CONF"] == f"prof_prefix:/tmp/{MARK}"
    run.write_environment(found)
    assert environment_hash(json.loads((run.path / "environment.json").read_text())) == environment_hash(found)


@pytest.mark.usefixtures("without_text_layer")
def test_what_trackers_receive(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a run that was written before a rule was known: what a tracker sends leaves the machine."""
    with monkeypatch.context() as older:
        older.setattr(run_directory, "redacted", lambda value: value)
        run.write_experiment(ASKED, EXPERIMENT, {})
    assert SECRET in (run.path / "experiment.yaml").read_text()
    _, _, settings = settings_of(run.path)
    assert SECRET not in json.dumps(settings)


@pytest.mark.parametrize("said", [f'password="{SECRET}"', f'{{"api_key": "{SECRET}"}}', f"login --token '{SECRET}'"])
def test_quotes_that_json_escapes(said: str) -> None:
    """An evaluation quotes prompts, a benchmark quotes errors: both are JSON when they are redacted."""
    for text in (said, json.dumps(said), json.dumps(json.dumps(said))):
        assert SECRET not in redacted_text(text)
        assert MARK in redacted_text(text)


@pytest.mark.parametrize(
    "said", [f"password:\n{SECRET}", f'password="{SECRET}"', f"password=\\{SECRET}", f"token: \t{SECRET}"]
)
def test_redacted_json_is_json(said: str) -> None:
    """No half of an escape is left behind."""
    assert json.loads(redacted_text(json.dumps({"said": said}))).keys() == {"said"}
