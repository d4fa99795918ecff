"""H10: the log checker rejects every spoilt run directory and accepts every one that a run wrote."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.record.checking import check_run
from foretune.record.log_lines import FIELDS
from tests.conftest import ProofSize
from tests.proofs.conftest import TinyModels
from tests.proofs.log_mutants import mutants, read, write
from tests.proofs.valid_runs import KINDS, finished, interrupted_then_resumed, killed_then_resumed

pytestmark = [pytest.mark.proof, pytest.mark.slow]

FAMILIES = ("flux", "ddpm", "sd3")
SOURCE = Path(__file__).parents[2] / "src" / "foretune"


def sections(number: int) -> dict[str, object]:
    """Differs from run to run: how often it saves and validates, its schedule, its accumulation."""
    return {
        "train": {"steps": 5, "batch_size": 1 + number % 2, "gradient_accumulation": 1 + number % 2},
        "save": {"every": 1 + number % 3, "keep": 2},
        "validate": {"every": 2 if number % 2 else None, "num_held_out": 2 if number % 3 else 0},
        "optimizer": {"lr": 1e-3, "schedule": ("constant", "linear", "cosine")[number % 3], "warmup_steps": number % 2},
    }


def parses(run: Path) -> bool:
    """The control: every line and the record are JSON, and the files are there."""
    try:
        for line in (run / "events.jsonl").read_text().splitlines():
            json.loads(line)
        json.loads((run / "record.json").read_text())
        json.loads((run / "environment.json").read_text())
    except (OSError, ValueError):
        return False
    return True


def test_h10_valid_logs_are_accepted(
    tmp_path: Path, tiny_models: TinyModels, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    wanted, found, rejected = proof_size(50, 8), 0, []
    while found < wanted:
        kind = KINDS[found % len(KINDS)]
        work = tmp_path / str(found)
        family = FAMILIES[found % len(FAMILIES)] if wanted > len(KINDS) else "ddpm"
        data = {"cache_dir": str(tiny_models.cache)}
        (path,) = kind(tiny_models.path(family), work, data=data, **sections(found))
        checked = check_run(path)
        if not checked.is_valid:
            rejected.append((kind.__name__, checked.faults))
        found += 1
    report_figure(f"{found - len(rejected)} of {found} valid run directories of {len(KINDS)} kinds accepted")
    assert rejected == []


def test_h10_spoilt_logs_are_rejected(
    tmp_path: Path, tiny_models: TinyModels, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    data = {"cache_dir": str(tiny_models.cache)}
    kinds = (finished, interrupted_then_resumed, killed_then_resumed)[: proof_size(3, 1)]
    originals = []
    for number, kind in zip((1, 2, 4), kinds, strict=False):
        (path,) = kind(tiny_models.path("ddpm"), tmp_path / kind.__name__, data=data, **sections(number))
        assert check_run(path).is_valid, check_run(path).faults
        originals.append(path)
    for path in originals:
        # Rewriting alone is not what betrays them.
        write(path, read(path), reseal=True)
        (path / "record.json").write_text(json.dumps(json.loads((path / "record.json").read_text())))
        assert check_run(path).is_valid, check_run(path).faults
    ways, wanted = mutants(), proof_size(200, 65)
    accepted, num_parsed = [], 0
    for number in range(wanted):
        mutant, original = ways[number % len(ways)], originals[number // len(ways) % len(originals)]
        run = tmp_path / "spoilt" / str(number) / original.name
        shutil.copytree(original, run, ignore=shutil.ignore_patterns("checkpoints", "samples"))
        mutant.spoil(run, random.Random(number))
        if check_run(run).is_valid:
            accepted.append((mutant.name, original.parent.name))
        num_parsed += parses(run)
    report_figure(
        f"{wanted - len(accepted)} of {wanted} spoilt run directories rejected ({len(ways)} ways); "
        f"control: a checker that only parses accepts {num_parsed}"
    )
    assert accepted == []
    assert num_parsed > wanted / 2


def test_h10_every_kind_of_event_is_known() -> None:
    """Whoever adds an event tells the checker what is in it."""
    written = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for piece in text.split("events.append(")[1:]:
            if piece.lstrip().startswith('"'):
                written.add(piece.lstrip()[1:].partition('"')[0])
    assert written >= {"started", "step", "saved", "validated", "telemetry", "ended"}
    assert written <= set(FIELDS)
