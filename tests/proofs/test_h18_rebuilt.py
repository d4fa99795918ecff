"""H18: a report is made of the run directories alone, and of nothing else.

Rebuilt from a copy elsewhere, by another process with another hash seed, time zone and order of runs, it has the same
bytes. Every number on it names its runs and is computed again here from their raw files. Digits follow the interval.
Controls: one changed loss changes the page; numbers as a program prints them have too many digits.
"""

import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune.analyse.run_data import gather
from foretune.analyse.run_report import run_report
from foretune.reports.run_page import report_page
from tests.reports.pages import Node, Page
from tests.reports.whole_runs import two_configurations, whole_run

pytestmark = pytest.mark.proof

_PRICE = 1.2
_NUMBER = re.compile(r"[-+]?\$?\d[\d,]*(?:\.\d+)?")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two configurations of three seeds, a run that failed, and a page beside them."""
    place = tmp_path_factory.mktemp("h18") / "first"
    two_configurations(place / "runs")
    whole_run(place / "runs" / "broken", method={"kind": "full"}, seed=7, status="failed", reason="no memory left")
    write_page(place)
    return place


def write_page(place: Path) -> str:
    page = report_page(run_report(gather([place / "runs"]), place, usd_per_hour=_PRICE))
    (place / "report.html").write_text(page, encoding="utf-8")
    return page


def test_h18_rebuilt_elsewhere_it_has_the_same_bytes(
    made: Path, tmp_path: Path, report_figure: Callable[[str], None]
) -> None:
    other = tmp_path / "another place" / "deep"
    shutil.copytree(made, other)
    first = (other / "report.html").read_bytes()
    (other / "report.html").unlink()
    folders = sorted((str(path) for path in (other / "runs").iterdir()), reverse=True)
    options = ["-o", str(other / "report.html"), "--price", str(_PRICE)]
    answer = subprocess.run(
        [sys.executable, "-m", "foretune.cli.main", "report", *folders, *options],
        env={**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    again = (other / "report.html").read_bytes()
    report_figure(f"rebuilt from a copy: {len(again):,} bytes, {'identical' if again == first else 'NOT identical'}")
    assert again == first
    assert str(made).encode() not in again
    assert str(tmp_path).encode() not in again


def test_h18_a_changed_log_changes_the_page(made: Path, tmp_path: Path) -> None:
    """Control: the page does depend on the raw logs."""
    other = tmp_path / "changed"
    shutil.copytree(made, other)
    log = other / "runs" / "lora-0" / "events.jsonl"
    log.write_text(log.read_text().replace('"step_s": 0.08', '"step_s": 0.38', 3), encoding="utf-8")
    assert write_page(other) != (made / "report.html").read_text(encoding="utf-8")


class Raw:
    """A run directory read by nobody's code but this test's."""

    def __init__(self, path: Path) -> None:
        self.events: list[dict[str, Any]] = [
            json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()
        ]
        self.record = json.loads((path / "record.json").read_text())
        self.evaluation = json.loads((path / "quality" / "evaluation.json").read_text())
        self.batch = yaml.safe_load((path / "experiment.yaml").read_text())["resolved"]["train"]["batch_size"]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    def _planned_speed(self, name: str, measured: float) -> float:
        planned = float(self.record["plan"]["time"]["samples_per_s"])
        return planned / measured - 1 if name.startswith("error") else planned

    def value(self, name: str) -> float:
        steps, pauses = self.of("step"), self.of("paused")
        time_s = sum(s["step_s"] for s in steps) + sum(sum(p["phases_s"].values()) for p in pauses)
        peak, planned = self.record["measured"]["peak_host_bytes"], self.record["plan"]["process_bytes"]
        known = {
            "time": time_s,
            "money": time_s / 3600 * _PRICE,
            "peak memory": peak,
            "held-out loss": self.of("validated")[-1]["held_out_loss"],
            "held-out loss, before": self.of("validated")[0]["held_out_loss"],
            "held-out loss, after": self.of("validated")[-1]["held_out_loss"],
            "planned memory": planned,
            "measured memory": peak,
            "error of the planned memory": planned / peak - 1,
            "steps measured": len(steps),
        }
        if name.endswith("speed"):
            # No warm-up in these runs: all samples over all step time.
            speed = float(self.batch * len(steps) / sum(s["step_s"] for s in steps))
            return speed if name in ("speed", "measured speed") else self._planned_speed(name, speed)
        if name.startswith("phase "):
            phase = name.removeprefix("phase ")
            return float(sum(e["phases_s"].get(phase, 0.0) for e in (*steps, *pauses)))
        if name.endswith(", change"):
            return self.value(name.replace(", change", ", run")) - self.value(name.replace(", change", ", base"))
        if name not in known:
            metric, _, column = name.partition(", ")
            scores = self.evaluation["scores"]
            return float(next(s["value"] for s in scores if (s["metric"], s["column"]) == (metric, column or "run")))
        return float(known[name])


def _runs_by_anchor(page: Page, place: Path) -> dict[str, Raw]:
    found = {}
    for row in page.root.find("tr"):
        anchor = row.attributes.get("id", "")
        if anchor.startswith("run-"):
            (link, *_) = [a for a in row.find("a") if a.attributes["href"].endswith("/events.jsonl")]
            found[anchor] = Raw(place / link.attributes["href"].removesuffix("/events.jsonl"))
    return found


def test_h18_every_number_is_that_of_its_runs(made: Path, report_figure: Callable[[str], None]) -> None:
    page = Page((made / "report.html").read_text(encoding="utf-8"))
    runs = _runs_by_anchor(page, made)
    assert len(runs) == 7
    numbers = page.root.find("data")
    names: dict[str, int] = {}
    for node in numbers:
        name, anchors = node.attributes["data-of"], node.attributes["data-runs"].split()
        names[name] = names.get(name, 0) + 1
        expected = statistics.fmean(runs[anchor].value(name) for anchor in anchors)
        reported = float(node.attributes["value"])
        assert math.isclose(reported, expected, rel_tol=1e-9, abs_tol=1e-12), (
            f"{name} of {anchors}: {reported}, raw {expected}"
        )
        assert _inside_link(node) or name in _UNLINKED, f"{name} leads nowhere"
    targets = {node.attributes["id"] for node in page.root.find("*") if "id" in node.attributes}
    for link in page.root.find("a"):
        href = link.attributes["href"]
        assert href[1:] in targets if href.startswith("#") else (made / href).exists(), href
    report_figure(f"{len(numbers)} numbers of {len(names)} kinds computed again from the raw files: all equal")
    assert {"time", "speed", "peak memory", "money", "caption accuracy", "error of the planned memory"} <= names.keys()


_UNLINKED = {
    "planned speed",
    "measured speed",
    "error of the planned speed",
    "planned memory",
    "measured memory",
    "error of the planned memory",
    "steps measured",
    "caption accuracy, base",
    "caption accuracy, run",
    "caption accuracy, change",
}
"""Their row's heading leads to the runs."""


def _inside_link(node: Node) -> bool:
    parent = node.parent
    return parent is not None and parent.name == "a" and parent.attributes["href"].startswith(("#configuration-", "./"))


def test_h18_no_number_stands_alone(made: Path) -> None:
    """What is in a number's cell is a traced number, an absence, or a count."""
    page = Page((made / "report.html").read_text(encoding="utf-8"))
    for cell in page.root.find("td", class_="number"):
        is_traced = bool(cell.find("data"))
        assert is_traced or re.fullmatch(r"–|\d+|\d+ of \d+|[-+]\d+ % to [-+]\d+ %", cell.text), cell.text


def too_fine(text: str, low: float, high: float) -> bool:
    """Whether the last digit of a number is finer than a thirtieth of its interval's half width."""
    number = _NUMBER.search(text)
    assert number is not None, text
    decimals = len(number[0].partition(".")[2])
    return 10.0**-decimals < (high - low) / 2 / 30 * (1 - 1e-9)


def test_h18_digits_follow_the_interval(made: Path, report_figure: Callable[[str], None]) -> None:
    page = Page((made / "report.html").read_text(encoding="utf-8"))
    checked = 0
    for cell in page.root.find("td", class_="number"):
        spans = cell.find("span", class_="interval")
        if not spans or " to " not in spans[0].text:
            continue
        shown = cell.find("data")[0]
        low, high = (float(n.replace("$", "").replace(",", "")) for n in _NUMBER.findall(spans[0].text)[:2])
        assert not too_fine(shown.text, low, high), cell.text
        assert too_fine(repr(float(shown.attributes["value"]) / 7), low, high), "control: as a program prints it"
        checked += 1
    report_figure(f"digits: {checked} numbers with an interval, none finer than a thirtieth of its half width")
    assert checked >= 10
