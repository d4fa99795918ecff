"""S6: no secret reaches a byte of a run directory or of a report.

Thirty canaries are in the environment, in arguments, in the experiment, in addresses and in exceptions. A real training
is made that says them where programs do: libraries echo tokens in their errors, trackers and warnings quote addresses.
Control: with redaction switched off, the same run writes them.
"""

import json
import random
import string
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from foretune.analyse.run_data import gather
from foretune.analyse.run_report import run_report
from foretune.config.reading import understand
from foretune.core.observer import Observer, StepReport
from foretune.record import redaction
from foretune.record.checking import check_run
from foretune.record.events import EventLog
from foretune.reports.run_csv import runs_csv
from foretune.reports.run_markdown import report_markdown
from foretune.reports.run_page import report_page
from foretune.training.trackers.tracker import settings_of
from foretune.training.train import train
from tests.proofs.conftest import TinyModels
from tests.training.short_runs import short_mapping

pytestmark = pytest.mark.proof


@dataclass(frozen=True)
class Canaries:
    """Secrets by where they are; the text is what says them."""

    environment: dict[str, str]
    arguments: tuple[str, ...]
    config: tuple[str, ...]
    addresses: tuple[str, ...]
    exceptions: tuple[str, ...]
    secrets: tuple[str, ...]


def canaries(seed: str) -> Canaries:
    """Six of each of five kinds; no two alike, none in the shape that another rule would catch by luck."""
    draw = random.Random(seed)
    made: list[str] = []

    def one(length: int = 24, letters: str = string.ascii_letters + string.digits) -> str:
        made.append("".join(draw.choice(letters) for _ in range(length)))
        return made[-1]

    upper = string.ascii_uppercase + string.digits
    names = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "DB_PASSWORD", "SLACK_WEBHOOK", "MY_PRIVATE_KEY")
    environment = {name: one() for name in names}
    arguments = (
        "--token", one(), f"--api-key={one()}", "--hub-token", one(), f"db.password={one()}", "--secret", one(),
        f"--access-key={one()}",
    )  # fmt: skip
    config = (
        f"a circle, token={one()}",
        f"password: {one()}",
        f"hf_{one()}",
        f"ghp_{one(36)}",
        f"AKIA{one(16, upper)}",
        f"sk-{one(32)}",
    )
    addresses = (
        f"https://user:{one()}@models.example/flux",
        f"https://{one()}@git.example/x.git",
        f"https://models.example/flux?token={one()}",
        f"https://bucket.example/x?X-Amz-Credential={one()}&X-Amz-Date=1",
        f"s3://key:{one()}@bucket/x",
        f"https://models.example/a?b=1&signature={one()}",
    )
    exceptions = (
        f"401 Unauthorized. Authorization: Bearer {one()}",
        f"connection to postgresql://me:{one()}@db/x failed",
        f"bad login: password='{one()}'",
        f"request failed: api_key={one()}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{one(60)}\n-----END RSA PRIVATE KEY-----",
        f'{{"secret": "{one()}", "code": 3}}',
    )
    assert len(set(made)) == 30, len(made)
    return Canaries(environment, arguments, config, addresses, exceptions, tuple(made))


class Breaking(Observer):
    """Ends the training in an error that quotes everything, as libraries do."""

    patience_s = 0.0

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words

    def stepped(self, report: StepReport) -> None:
        if report.step == 1:
            raise RuntimeError("; ".join(self.words))


def _made_run(place: Path, models: TinyModels, found: Canaries) -> Path:
    mapping = short_mapping(
        models.path("ddpm"),
        place,
        data={"cache_dir": str(models.cache)},
        validate={"prompts": [*found.config], "num_held_out": 0},
    )
    asked = understand(mapping, source="test")
    echoed = (*found.environment.values(), *_values(found.arguments))
    warned = Warned(asked, [*found.addresses[:3]])
    trained = train(warned.asked, place / "runs", Breaking((*found.exceptions, *found.addresses[3:], *echoed)))
    assert trained.record.outcome.status == "failed", "the run ends in the error"
    return trained.run.path


@dataclass(frozen=True)
class Warned:
    """An experiment with warnings of its own, which the record keeps."""

    given: Any
    warnings: list[str]

    @property
    def asked(self) -> Any:
        import dataclasses

        return dataclasses.replace(self.given, warnings=tuple(f"cannot reach {text}" for text in self.warnings))


def _values(arguments: tuple[str, ...]) -> Iterator[str]:
    for argument in arguments:
        value = argument.partition("=")[2] or argument
        if not value.startswith("--"):
            yield value


def _found_in(place: Path, secrets: tuple[str, ...]) -> set[str]:
    contents = [path.read_bytes() for path in place.rglob("*") if path.is_file()]
    return {secret for secret in secrets if any(secret.encode() in content for content in contents)}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, tiny_models: TinyModels) -> Iterator[dict[str, Any]]:
    """The same run twice: as it is, and with redaction off."""
    found = canaries("s6")
    patched = pytest.MonkeyPatch()
    for name, value in found.environment.items():
        patched.setenv(name, value)
    patched.setattr(sys, "argv", ["foretune", "train", "x.yaml", *found.arguments])
    made: dict[str, Any] = {"canaries": found}
    for state in (True, False):
        patched.setattr(redaction, "IS_ON", state)
        place = tmp_path_factory.mktemp(f"s6-{state}")
        run = _made_run(place, tiny_models, found)
        settings = settings_of(run)
        (place / "tracker.txt").write_text(repr(settings), encoding="utf-8")
        report = run_report(gather([place / "runs"]), place)
        (place / "report.html").write_text(report_page(report), encoding="utf-8")
        (place / "report.md").write_text(report_markdown(report), encoding="utf-8")
        (place / "runs.csv").write_text(runs_csv(report), encoding="utf-8")
        made[str(state)] = place
    patched.setattr(redaction, "IS_ON", True)
    yield made
    patched.undo()


def test_s6_no_secret_is_in_a_run_directory_or_report(
    written: dict[str, Any], report_figure: Callable[[str], None]
) -> None:
    secrets = written["canaries"].secrets
    kept, leaked = _found_in(written["True"], secrets), _found_in(written["False"], secrets)
    report_figure(f"30 canaries: {len(kept)} in any byte of run directory and report; redaction off: {len(leaked)}")
    assert kept == set()
    assert len(leaked) >= 25, "control"


def test_s6_the_run_directory_is_still_whole(written: dict[str, Any]) -> None:
    (run,) = (written["True"] / "runs" / "short").glob("2*")
    checked = check_run(run)
    assert checked.faults == ()


@pytest.mark.parametrize("seed", range(5))
def test_s6_other_secrets_are_taken_out_too(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = canaries(f"s6 {seed}")
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["foretune", *found.arguments])
    log = EventLog(tmp_path / "events.jsonl")
    log.append("said", words=[*found.config, *found.addresses], error="; ".join(found.exceptions))
    log.append("echoed", words={"all": [*found.environment.values(), *_values(found.arguments)], "token": "short"})
    log.close()
    assert _found_in(tmp_path, found.secrets) == set()


def test_s6_what_is_no_secret_stays() -> None:
    innocent = {
        "max_text_tokens": 16, "tokenizer": "owner/tokenizer", "prompt": "a secret garden with a key on a keyboard",
        "commit": "0123456789abcdef0123456789abcdef01234567", "path": "/data/tokens/part-1", "url": "https://host/x?page=2",
        "text": "tokens: 1024, author: someone, monkey=banana-split", "mail": "me@host.example", "time_s": 1.5,
    }  # fmt: skip
    assert redaction.redacted(innocent) == innocent


def test_s6_a_file_stays_a_file() -> None:
    """Redacted as text, JSON is JSON still: also where a key was cut short."""
    key = "-----BEGIN PRIVATE KEY-----\nMIIabc+/=\nq"
    content = {
        "first": key,
        "second": f'say "password={"x" * 9}"',
        "third": "https://a:b@c/d",
        "token": "abcdefgh",
        "n": 1,
    }
    kept = json.loads(redaction.redacted_text(json.dumps(content)))
    assert kept.keys() == content.keys()
    assert kept["first"] == kept["token"] == redaction.MARK
    assert kept["n"] == 1
    assert "xxx" not in kept["second"]
    assert kept["third"] == "https://[redacted]@c/d"
