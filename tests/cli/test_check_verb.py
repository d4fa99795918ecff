"""`foretune check` as a person types it: what is wrong is listed with its line, and the exit code says whether."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Foretune
from tests.training.short_runs import short_run


def test_check(tmp_path: Path, tiny_pipeline: Callable[..., Path], foretune: Foretune) -> None:
    run = short_run(tiny_pipeline("ddpm"), tmp_path).run.path
    answer = foretune("check", str(run))
    assert answer.returncode == 0
    assert answer.stdout.startswith(f"{run}: valid (")
    assert "3 steps, 1 start)" in answer.stdout
    assert json.loads(foretune("check", str(run), "--json").stdout)["valid"] is True

    record = json.loads((run / "record.json").read_text())
    record["measured"]["samples_per_s"] *= 1.1
    (run / "record.json").write_text(json.dumps(record))
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(line for line in lines if '"step": 1, "loss"' not in line))
    answer = foretune("check", str(run))
    assert answer.returncode == 1
    assert "'step' of step 2 where 'step' of step 1 should be" in answer.stdout
    assert "the lines before it are not those that were written" in answer.stdout
    assert "samples_per_s is" in answer.stdout
    assert "not valid" in answer.stdout
    reported = json.loads(foretune("check", str(run), "--json").stdout)
    assert reported["valid"] is False
    assert len(reported["faults"]) >= 3

    (run / "record.json").unlink()
    (run / "events.jsonl").write_text("".join(lines[:4]))
    answer = foretune("check", str(run))
    assert answer.returncode == 0, "a run that was killed is valid as far as it goes"
    assert f"Next: foretune resume {run}" in answer.stdout


def test_what_is_no_run(tmp_path: Path, foretune: Foretune) -> None:
    answer = foretune("check", str(tmp_path))
    assert answer.returncode == 2
    assert "is not a run directory" in answer.stderr
