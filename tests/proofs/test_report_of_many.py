"""A report of a thousand runs is made in under 10 s and stays under 10 MB; what it leaves out is said on it."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.analyse.run_data import gather
from foretune.analyse.run_report import run_report
from foretune.reports.run_csv import runs_csv
from foretune.reports.run_page import report_page
from tests.conftest import ProofSize
from tests.reports.whole_runs import many_copies, picture, whole_run

pytestmark = pytest.mark.proof

_MOST_S = 10
_MOST_BYTES = 10 * 10**6


def test_a_report_of_many_runs_is_quick_and_small(
    tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    num = proof_size(1000, 100)
    pattern = whole_run(tmp_path / "pattern", num_steps=100)
    for sample in (pattern / "samples").glob("*.png"):
        # Noise does not shrink: as large as a sample of a real model.
        sample.write_bytes(picture(512) + bytes(range(256)) * 800)
    many_copies(tmp_path / "runs", num, pattern)
    # The processor's time: what else the machine does is not the report's.
    began_s, began_wall_s = time.process_time(), time.perf_counter()
    report = run_report(gather([tmp_path / "runs"]), tmp_path, usd_per_hour=1.0)
    page = report_page(report)
    took_s, wall_s = time.process_time() - began_s, time.perf_counter() - began_wall_s
    size = len(page.encode())
    report_figure(
        f"{num} runs, {len(report.configurations)} configurations: {took_s:.1f} s of one processor ({wall_s:.1f} s by "
        f"the clock), {size / 1e6:.1f} MB"
    )
    assert len(report.runs) == num
    assert took_s < _MOST_S
    assert size < _MOST_BYTES
    assert f"The first 8 of {len(report.configurations)} configurations are shown." in page, "pictures"
    assert "are drawn" in page, "curves and bars"
    assert page.count('id="run-') == num
    assert len(runs_csv(report).splitlines()) == num + 1
