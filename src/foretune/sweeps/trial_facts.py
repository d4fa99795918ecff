"""What the sweep knows of a trial before it runs: a small file in the trial's folder."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foretune.core.input_files import read_json
from foretune.record.atomic import write_text
from foretune.record.redaction import redacted

SWEEP_FILE, TRIALS, TRIAL = "sweep.yaml", "trials", "trial.json"
"""In the folder of a sweep, and in that of each trial."""
_MOST_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class TrialFacts:
    """Which combination it is, and what is forecast for it."""

    content: str
    """Hash of what is run and where."""
    labels: Mapping[str, str]
    """The value of each axis, as text."""
    changes: Mapping[str, Any]
    """What the combination changes in the experiment, by key."""
    seed: int
    num_devices: int | None = None
    planned_peak_bytes: int | None = None


def write_facts(folder: Path, facts: TrialFacts) -> None:
    """Writes them where they are not there yet, or were those of another table."""
    if (folder / TRIAL).is_file() and read_facts(folder) == facts:
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / TRIAL, json.dumps(redacted(asdict(facts)), indent=1) + "\n")


def read_facts(folder: Path) -> TrialFacts:
    return TrialFacts(**read_json(folder / TRIAL, _MOST_BYTES))
