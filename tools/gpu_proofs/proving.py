"""The proofs, one after another, each with its outcome: tests, calibration, then each model beside its plan."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from foretune.api.bench import bench
from foretune.api.calibrate import calibrate
from foretune.api.sharing import shared_row
from foretune.backtests.shared.row_format import SharedRow
from foretune.backtests.shared.row_format import shared_row as read_row
from foretune.backtests.shared.scoring import forecaster, score_shared
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from tools.gpu_proofs.cases import Case, LeftOutModel
from tools.gpu_proofs.results import GpuProofs, ProofResult, public_text, write_results

CALIBRATION = "calibration"
_OVERHEAD_S = 20.0
_OF_ROUTINE_RUNS = ("FORETUNE_TAKE_TURNS", "FORETUNE_NO_SKIPS")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Suite:
    """Tests that prove one thing together, in a pytest of their own."""

    name: str
    arguments: tuple[str, ...]
    """Arguments of pytest."""
    expected_s: float


WORKFLOW = Suite(
    "whole workflow, from images in a folder to shared files",
    ("-m", "gpu", "tests/training/test_workflow_on_gpu.py"),
    600,
)
WAITS = Suite("waits of the host in a step of each family", ("-m", "gpu", "tests/training/test_waits_on_gpu.py"), 180)
_APART = [argument for suite in (WORKFLOW, WAITS) for argument in ("--ignore", suite.arguments[-1])]
OTHERS = Suite("other tests marked gpu", ("-m", "gpu", *_APART, "tests"), 600)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What to prove, on which device."""

    device: str
    """As `parallel.device`."""
    cases: tuple[Case | LeftOutModel, ...]
    output: Path
    suites: tuple[Suite, ...] = (WORKFLOW, WAITS, OTHERS)
    calibration_s: float = 45.0
    benches: Path = field(default_factory=lambda: Path("build") / "gpu_proofs")


def expected(work: Work) -> Iterator[tuple[str, float | None]]:
    """Each proof with about how long it takes; None where that is not known, 0 where it is skipped."""
    for suite in work.suites:
        yield suite.name, suite.expected_s
    yield CALIBRATION, work.calibration_s + _OVERHEAD_S
    for case in work.cases:
        yield case.name, case.expected_s if isinstance(case, Case) else 0.0


def prove(work: Work, results: GpuProofs, say: Say) -> GpuProofs:
    """Runs what is not done yet, and stores the results after each."""
    steps: list[tuple[str, Callable[[], tuple[ProofResult, SharedRow | None]]]] = [
        *((suite.name, lambda suite=suite: (_tests(suite), None)) for suite in work.suites),
        (CALIBRATION, lambda: (_calibration(work), None)),
        *((case.name, lambda case=case: _case(work, case)) for case in work.cases),
    ]
    for name, step in steps:
        if name in results.done():
            say(f"{name}: done before")
            continue
        say(f"{name} ...")
        proof, row = step()
        results = scored(results.with_proof(proof, None if row is None else row.cells()))
        write_results(work.output, results)
        say(f"{name}: {proof.outcome}{'' if proof.reason is None else f', {proof.reason}'} ({proof.took_s:.0f} s)")
    return results


def scored(results: GpuProofs) -> GpuProofs:
    """With the plan's errors on all rows so far, by what ships: as somebody without the device gets it."""
    rows = [read_row(cells) for cells in results.rows]
    return results.model_copy(update={"score": score_shared(rows, forecaster()).as_dict()["shared"]})


def _tests(suite: Suite) -> ProofResult:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        # All of them, whatever a routine run of the tests leaves out.
        environment = {name: value for name, value in os.environ.items() if name not in _OF_ROUTINE_RUNS}
        finished = subprocess.run(
            [*command, *suite.arguments], check=False, capture_output=True, text=True, env=environment
        )
        tests = list(_outcomes(report)) if report.is_file() else []
    figures = {
        **{outcome: sum(one == outcome for _, one, _ in tests) for outcome in ("passed", "failed", "skipped")},
        "not passed": {name: f"{outcome}: {why}" for name, outcome, why in tests if outcome != "passed"},
    }
    took_s = time.monotonic() - began_s
    if not tests:
        last = (finished.stdout.strip().splitlines() or ["it printed nothing"])[-1]
        return ProofResult(name=suite.name, outcome="failed", reason=public_text(f"no test ran: {last}"), took_s=took_s)
    failed = figures["failed"]
    outcome = "failed" if failed or finished.returncode else "passed" if figures["passed"] else "skipped"
    reason = None if outcome == "passed" else f"{failed} of {len(tests)} failed, {figures['skipped']} skipped"
    return ProofResult(name=suite.name, outcome=outcome, reason=reason, took_s=took_s, figures=figures)  # type: ignore[arg-type]


def _outcomes(report: Path) -> Iterator[tuple[str, str, str]]:
    """Each test of pytest's report: its name, its outcome, and why."""
    for one in ET.parse(report).iter("testcase"):  # nosec B314  # noqa: S314 - our own pytest wrote it
        name = f"{one.get('classname', '')}.{one.get('name', '')}"
        for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            found = one.find(tag)
            if found is not None:
                yield name, outcome, public_text(found.get("message") or outcome)
                break
        else:
            yield name, "passed", ""


def _calibration(work: Work) -> ProofResult:
    began_s = time.monotonic()
    try:
        profile = calibrate(on=work.device, budget_s=work.calibration_s).profile
    except (UserError, RuntimeError) as error:
        return _failed(CALIBRATION, error, began_s)
    figures = {"num_products": len(profile.products), "warnings": [public_text(text) for text in profile.warnings]}
    return ProofResult(name=CALIBRATION, outcome="passed", took_s=time.monotonic() - began_s, figures=figures)


def _case(work: Work, case: Case | LeftOutModel) -> tuple[ProofResult, SharedRow | None]:
    began_s = time.monotonic()
    if isinstance(case, LeftOutModel):
        return ProofResult(name=case.name, outcome="skipped", reason=public_text(case.reason), took_s=0.0), None
    experiment = {**case.experiment, "parallel": {"device": work.device}}
    try:
        measured = bench(
            experiment,
            steps=case.num_steps,
            repeat=case.num_repeats,
            random_weights=True,
            benches=work.benches,
            observer=Observer(),
        )
        row = shared_row(measured)
    except (UserError, RuntimeError) as error:
        # An out-of-memory where the plan says that it fits is a result, and the most interesting one.
        return _failed(case.name, error, began_s), None
    figures = _figures(row)
    return ProofResult(name=case.name, outcome="passed", took_s=time.monotonic() - began_s, figures=figures), row


def _figures(row: SharedRow) -> dict[str, Any]:
    """Measured and planned, in bytes and seconds."""
    score = score_shared([row], forecaster()).as_dict()
    return {"id": row.row_id, "memory": score["shared_memory_rows"], "step_time": score["shared_speed_rows"]}


def _failed(name: str, error: Exception, began_s: float) -> ProofResult:
    return ProofResult(
        name=name,
        outcome="failed",
        reason=public_text(f"{type(error).__name__}: {error}"),
        took_s=time.monotonic() - began_s,
    )
