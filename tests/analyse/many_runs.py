"""Very many run directories, written like real ones: real trainings are copied, with other settings and figures."""

import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from foretune.record.run_directory import RunDirectory

STATUSES = ("finished", "finished", "finished", "finished", "finished", "out of memory", "failed", "interrupted", None)
"""None: killed, so that there is no record."""
MODELS = ("flux.1-dev", "sd3.5-large", "sdxl", "wan2.1-t2v-1.3b", "./tiny")
_MARK = "PLACEHOLDER"
_PER_FOLDER = 1000


@dataclass(frozen=True)
class Template:
    """The files of one real run, with placeholders where its copies differ."""

    source: Path
    experiment: str
    record: str
    has_rank: bool

    @classmethod
    def of(cls, source: Path) -> "Template":
        content = yaml.safe_load((source / "experiment.yaml").read_text())
        resolved, has_rank = content["resolved"], "rank" in content["resolved"]["method"]
        for section, key in (("train", "batch_size"), ("train", "seed"), ("train", "precision"), ("optimizer", "lr")):
            resolved[section][key] = f"{_MARK}{key}"
        resolved["model"] = f"{_MARK}model"
        if has_rank:
            resolved["method"]["rank"] = f"{_MARK}rank"
        record = json.loads((source / "record.json").read_text())
        record["run_id"] = f"{_MARK}run"
        record["experiment_hash"] = record["question_hash"] = f"{_MARK}hash"
        record["outcome"] = f"{_MARK}outcome"
        measured = record["measured"]
        for key in ("samples_per_s", "median_step_s", "last_loss", "peak_host_bytes"):
            assert measured[key] is not None
            measured[key] = f"{_MARK}{key}"
        measured["held_out_losses"] = [[0, 1.0], [record["measured"]["num_step_times"], f"{_MARK}held_out"]]
        text = json.dumps(record, indent=2)
        for key in ("outcome", "samples_per_s", "median_step_s", "last_loss", "peak_host_bytes", "held_out"):
            text = text.replace(f'"{_MARK}{key}"', f"{_MARK}{key}")
        return cls(source, yaml.safe_dump(content, sort_keys=False), text, has_rank)


def facts(number: int, num_runs: int) -> dict[str, Any]:
    """What the run of this number differs in: a function of the number alone, so that a test knows the answers."""
    draw = random.Random(number)
    status = STATUSES[number % len(STATUSES)]
    steps = draw.randint(0, 900) if status not in (None, "finished") else 1000
    reason = None if status == "finished" else f"it was made {status}"
    speed = round(draw.uniform(0.5, 60.0), 6)
    return {
        "run": f"20261101-{number:06d}-{draw.getrandbits(32):08x}",
        "hash": f"{draw.getrandbits(64):016x}",
        "model": MODELS[number * len(MODELS) // num_runs],
        "batch_size": 2 ** draw.randint(0, 5),
        "seed": number % 7,
        "precision": draw.choice(("bf16", "fp32")),
        "lr": draw.choice((1e-6, 5e-5, 1e-4)),
        "rank": draw.choice((1, 16, 64)),
        "status": status,
        "outcome": json.dumps({"status": status, "steps_done": steps, "reason": reason}),
        "steps": steps,
        "samples_per_s": speed,
        "median_step_s": round(1 / speed, 9),
        "last_loss": round(draw.uniform(0.05, 1.5), 6),
        "peak_host_bytes": draw.randint(2**29, 2**34),
        "held_out": round(draw.uniform(0.05, 1.5), 6),
    }


def write_many(folder: Path, sources: Sequence[Path], num_runs: int) -> None:
    """Runs in folders of a thousand, as many experiments would leave them."""
    templates = [Template.of(source) for source in sources]
    for number in range(num_runs):
        template, known = templates[number % len(templates)], facts(number, num_runs)
        path = folder / f"experiment-{number // _PER_FOLDER:04d}" / known["run"]
        path.mkdir(parents=True)
        (path / "experiment.yaml").write_text(_filled(template.experiment, known))
        if known["status"] is not None:
            (path / "record.json").write_text(_filled(template.record, known))
        for name in ("events.jsonl", "environment.json", "plan.json"):
            # What does not differ is not stored a hundred thousand times.
            os.link(template.source / name, path / name)
        RunDirectory(path).checkpoints.mkdir()


def _filled(text: str, known: dict[str, Any]) -> str:
    for key in sorted(known, key=len, reverse=True):
        text = text.replace(f"{_MARK}{key}", str(known[key]))
    return text
