"""S7: whatever runs are called and say, a report executes nothing and fetches nothing.

250 payloads go through prompts, captions, names of runs, models, metrics and files, reasons, warnings, the environment
and the title. The page is read by a parser and by a real browser, beside a server that counts who asks it for anything.
Control: the same page with escaping switched off, and, in the browser, without its policy.
"""

import html
import http.server
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from foretune.analyse.run_data import gather
from foretune.analyse.run_report import RunReport, run_report
from foretune.core.values import Finding
from foretune.reports.run_csv import runs_csv
from foretune.reports.run_markdown import report_markdown
from foretune.reports.run_page import report_page
from tests.proofs.script_payloads import payloads
from tests.reports.pages import Page, dangers, policy_of
from tests.reports.whole_runs import ENVIRONMENT, whole_run

pytestmark = pytest.mark.proof

_PLACES = 10
"""Places of one run that payloads go through."""


def hostile_runs(folder: Path, texts: list[str]) -> RunReport:
    """A run for every ten payloads."""
    for start in range(0, len(texts), _PLACES):
        part = texts[start : start + _PLACES]
        name, file = (_file_name(text) for text in part[:2])
        whole_run(
            folder / "runs" / f"{start:03d}{name}",
            grid=f"{file}.png",
            model=f"owner/{part[2]}",
            metrics=(part[3],),
            prompts=(part[4], part[5]),
            reason=part[6],
            status="failed" if start % 50 == 0 else "finished",
            warnings=(part[7],),
            environment={**ENVIRONMENT, "cpu": part[8], "packages": {"torch": part[9]}},
            num_steps=4,
        )
    return run_report(gather([folder / "runs"]), folder)


def _file_name(text: str) -> str:
    """As much of a payload as a file system takes."""
    return text.replace("/", "\u2215").replace("\0", "")[:120]


def page_of(report: RunReport, texts: list[str]) -> str:
    finding = Finding(sentence=texts[0], evidence=(), caveat=texts[1])
    return report_page(report, title=texts[2], findings=[finding])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return hostile_runs(tmp_path_factory.mktemp("s7"), payloads())


def test_s7_the_parser_finds_nothing_that_runs(
    report: RunReport, monkeypatch: pytest.MonkeyPatch, report_figure: Callable[[str], None]
) -> None:
    texts = payloads()
    page = page_of(report, texts)
    found = dangers(page)
    policy = policy_of(page)
    visible = Page(page).root.text
    shown = sum(_visible(text) in visible for text in texts)
    with monkeypatch.context() as patched:
        patched.setattr(html, "escape", lambda text, quote=True: text)
        control = len(dangers(page_of(report, texts)))
    report_figure(
        f"250 payloads ({shown} of them readable on the page as text): {len(found)} dangerous nodes; "
        f"escaping off: {control}"
    )
    assert found == []
    assert policy["default-src"] == "'none'"
    assert policy["img-src"] == "data:"
    assert policy["style-src"] == "'unsafe-inline'"
    assert "script-src" not in policy, "scripts fall under default-src"
    assert (policy["base-uri"], policy["form-action"]) == ("'none'", "'none'")
    assert shown > 60, "payloads are there, as text"
    assert control > 60, "control"
    assert html.escape("<") == "&lt;", "put back"


def _visible(text: str) -> str:
    return html.unescape(text.replace("\0", ""))


def test_s7_markdown_and_tables_are_inert_too(report: RunReport) -> None:
    texts = payloads()
    written = report_markdown(report, title=texts[2])
    unescaped = re.sub(r"\\.", "", written)
    assert "<" not in unescaped
    assert "javascript:" not in {link.split(":")[0] + ":" for link in re.findall(r"\]\(([^)]*)\)", unescaped)}
    for line in runs_csv(report).splitlines()[1:]:
        for cell in re.findall(r'(?:^|,)"?([^",]*)', line):
            assert not cell.startswith(("=", "+", "@")), cell


@contextmanager
def counting_server() -> Iterator[tuple[str, list[str]]]:
    """An address, and what was asked of it."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Nothing to the terminal."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/x", asked
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.usefixtures("chromium")
def test_s7_a_browser_executes_and_fetches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report_figure: Callable[[str], None]
) -> None:
    with counting_server() as (there, asked):
        texts = payloads(there)
        found = hostile_runs(tmp_path / "all", texts)
        page = tmp_path / "page.html"
        page.write_text(page_of(found, texts), encoding="utf-8")
        seen = _browsed(page)
        asked_by_page = list(asked)
        # A page that goes elsewhere again and again never ends loading: ten that only fetch are enough for the control.
        simple = [text for text in texts if "<img src='http" in text or "<script/src" in text][:_PLACES]
        found = hostile_runs(tmp_path / "few", simple)
        monkeypatch.setattr(html, "escape", lambda text, quote=True: text)
        naked = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", page_of(found, simple))
        page.with_name("naked.html").write_text(naked, encoding="utf-8")
        _browsed(page.with_name("naked.html"))
        report_figure(
            f"chromium: {len(dangers(seen))} dangerous nodes, {len(asked_by_page)} requests; without escaping and "
            f"policy, ten payloads: {len(asked) - len(asked_by_page)} requests"
        )
    assert "Made from the run directories alone" in seen, "the page was rendered to its end"
    assert dangers(seen) == []
    assert asked_by_page == []
    assert "<title>owned" not in seen
    assert len(asked) > len(asked_by_page), "control: the server counts what a page fetches"


def _browsed(page: Path, most_s: float = 120) -> str:
    """The document as the browser has it after loading; nothing where it does not come to an end of that."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
    profile = page.parent / f"profile-{page.stem}"
    process = subprocess.Popen(
        ["chromium", *options, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=most_s)[0].decode("utf-8", errors="replace")
    except subprocess.TimeoutExpired:
        # It has processes of its own, which are in the session that was started for it.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return ""
