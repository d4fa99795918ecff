"""The planner's page in a real browser: the command line's numbers, nothing from elsewhere, links that are inert."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

import foretune as ft
from foretune.core.errors import UserError
from tests.conftest import ProofSize, lacking
from tests.tools.browser_planner.chromium import Page, opened
from tests.tools.browser_planner.site_server import SiteServer, served_site
from tools.browser_planner.__main__ import BUILD
from tools.browser_planner.answering import answer, numbers
from tools.browser_planner.assembling import assemble
from tools.browser_planner.modules import ROOT
from tools.browser_planner.question import Question

pytestmark = [pytest.mark.slow, pytest.mark.takes_turns, pytest.mark.usefixtures("chromium")]

# None of them is answered in advance. The first ones are for every run.
QUESTIONS = (
    Question(model="sd1.5-unet", on="12GiB", settings="train.batch_size=2"),
    Question(model="flux.1-dev", on="rtx-3090", rank="64"),
    Question(model="wan2.1-t2v-1.3b", on="l4", frames="33"),
    Question(model="flux.1-dev", on="rtx-4090", settings="quantize.denoiser=int8"),
    Question(model="sdxl-unet", method="full", on="l40s"),
    Question(model="sdxl-unet", on="t4", size="768"),
    Question(model="sd3.5-medium", on="rtx-4070", rank="32"),
    Question(model="qwen-image", on="a100-80gb-sxm"),
    Question(model="z-image", on="rtx-4060-ti-16gb"),
    Question(model="chroma", on="mi300x"),
    Question(model="lumina-image-2.0", on="20GiB"),
    Question(model="sd1.5-unet", method="full", on="rtx-2080-ti"),
    Question(model="flux.1-dev", method="lokr", on="l40s"),
    Question(model="flux.1-dev", method="full", on="h200-sxm"),
    Question(model="sd3-medium", on="a10g", settings="optimizer.kind=adafactor"),
    Question(model="ltx-video-0.9", on="rtx-3060"),
    Question(model="mochi-1", on="h100-pcie"),
    Question(model="hunyuanvideo", on="rtx-pro-6000", frames="61"),
    Question(model="pixart-sigma-xl2-1024", on="10GiB"),
    Question(model="flux.1-schnell", on="rtx-4090", settings="levers.block_swap=20 train.batch_size=2"),
)
HOSTILE = "<img src=x onerror=alert(1)><script>alert(1)</script>"
# Every answer of the worker is kept, as the page has them.
KEEP_ANSWERS = """
globalThis.answers = [];
globalThis.Worker = class extends Worker {
  constructor(...words) {
    super(...words);
    this.addEventListener("message", ({ data }) => { if (data.answer) answers.push(data.answer); });
  }
};
globalThis.alert = () => { document.documentElement.dataset.broken = "yes"; };
"""
FETCH_ELSEWHERE = "fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => String(error))"
FETCH_ELSEWHERE_IN_A_WORKER = """
new Promise((done) => {
  const source = `self.addEventListener("securitypolicyviolation", (event) => postMessage(event.effectiveDirective));
    fetch("http://127.0.0.1:9/").then(() => postMessage("sent"), () => 0);`;
  const worker = new Worker(URL.createObjectURL(new Blob([source])));
  worker.onmessage = ({ data }) => done(data);
})
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs" / "planner", folder / "planner")
    if shutil.which("npm") is None:
        lacking("npm: apt-get install npm")
    for _ in assemble(folder / "planner", BUILD, 1):
        pass
    return folder


@pytest.fixture
def server(site: Path) -> Iterator[SiteServer]:
    with served_site(site) as found:
        yield found


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with opened(tmp_path / "profile") as found:
        found.call("Page.addScriptToEvaluateOnNewDocument", source=KEEP_ANSWERS)
        yield found


def text_of(page: Page, element: str) -> str:
    return str(page.evaluate(f"document.getElementById({element!r}).textContent"))


def ask(page: Page, server: SiteServer, question: Question) -> None:
    page.evaluate(f"location.hash = {question.fragment!r}")


def check_first_answer(page: Page, server: SiteServer) -> float:
    """What was computed in advance stands while nothing of the planner was requested, let alone sent.

    Returns the seconds until then.
    """
    begin_s = time.monotonic()
    page.open(f"{server.origin}/planner/index.html")
    shown = page.wait_for("document.getElementById('sentence')?.textContent")
    shown_s = time.monotonic() - begin_s
    assert not [path for path in server.asked if "/assets/" in path]
    assert page.evaluate("location.hash") == "#model=flux.1-dev&on=rtx-4090"
    (plan,) = ft.plan("flux.1-dev", {"method.kind": "lora"}, on="rtx-4090")
    computed = answer({"model": "flux.1-dev", "on": "rtx-4090"})
    assert shown == computed["sentence"]
    assert computed["numbers"] == numbers(plan)
    assert text_of(page, "experiment") == computed["experiment"]
    assert page.evaluate("document.querySelectorAll('#bars svg .part').length") > 10
    return shown_s


def check_computed(page: Page, server: SiteServer, num_questions: int) -> list[float]:
    """The same numbers as the command line's, from a link. Returns the seconds of each; the first loads the planner."""
    answered_s = []
    for count, question in enumerate(QUESTIONS[:num_questions], start=1):
        begin_s = time.monotonic()
        ask(page, server, question)
        server.may_send_assets.set()
        page.wait_for(f"answers.length === {count} || !document.getElementById('notice').hidden")
        answered_s.append(time.monotonic() - begin_s)
        assert not text_of(page, "notice"), question.command()
        found = page.evaluate("answers.at(-1)")
        (plan,) = ft.plan(question.model, question.changes(), on=question.on)
        expected = json.loads(json.dumps(numbers(plan)))
        for key in ("step_s", "job_s", "usd"):
            if expected[key] is not None:  # a card without a price, a step without shapes
                expected[key] = pytest.approx(expected[key], rel=1e-9)
        assert found["numbers"] == expected, question.command()
        assert text_of(page, "sentence") == found["sentence"]
        assert text_of(page, "command") == question.command()
        assert page.evaluate("location.hash") == f"#{question.fragment}"
    return answered_s


def check_remedy(page: Page) -> None:
    """A button plans with a setting that makes it fit, and the link changes with it."""
    page.evaluate("location.hash = 'model=flux.1-dev&on=rtx-4090'")
    page.wait_for("document.getElementById('status').textContent.startsWith('Computed in advance')")
    before = page.evaluate("answers.length")
    settings = page.evaluate("document.querySelector('.remedies code').textContent")
    page.evaluate("document.querySelector('.remedies button').click()")
    page.wait_for(f"answers.length > {before}")
    assert (
        page.evaluate("location.hash")
        == f"#{urlencode({'model': 'flux.1-dev', 'on': 'rtx-4090', 'settings': settings})}"
    )
    assert text_of(page, "sentence").startswith("Fits on rtx-4090")
    assert page.evaluate("form.elements.settings.value") == settings


def check_hostile_link(page: Page) -> None:
    """Markup in a link is text on the page and a mistake for the planner."""
    for field in ("model", "on", "settings", "method", "size"):
        before = page.evaluate("answers.length")
        question = {"model": "flux.1-dev", "on": "rtx-4090", field: HOSTILE}
        page.evaluate(f"location.hash = {urlencode(question)!r}")
        page.wait_for(f"answers.length > {before}")
        assert page.evaluate("document.getElementById('answer').hidden"), field
        assert text_of(page, "notice"), field
        shown = page.evaluate(f"document.getElementById('form').elements.{field}.value")
        assert shown == HOSTILE, field
        assert page.evaluate("document.querySelectorAll('img, script:not([src]), #notice *').length") == 0
        assert page.evaluate("document.documentElement.dataset.broken") is None


def check_requests(page: Page, server: SiteServer) -> None:
    """No request left the origin, and the policy would not let one: neither from the page nor from the worker."""
    foreign = [url for url in page.requests if not url.startswith((server.origin, "blob:", "data:", "about:"))]
    assert foreign == []
    for script in (FETCH_ELSEWHERE, FETCH_ELSEWHERE_IN_A_WORKER):
        assert page.evaluate(script) in ("TypeError: Failed to fetch", "connect-src")


def test_the_page_in_chromium(
    page: Page, server: SiteServer, proof_size: ProofSize, report_figure: Callable[[str], None], tmp_path: Path
) -> None:
    """One test with parts, so that the planner is loaded once."""
    shown_s = check_first_answer(page, server)
    num_questions = proof_size(len(QUESTIONS), 2)
    cold_s, *warm_s = check_computed(page, server, num_questions)
    for width_px in (390, 1200):
        page.resize(width_px, 900)
        assert page.evaluate("document.documentElement.scrollWidth") <= width_px
    check_remedy(page)
    sent = {path: size for path, size in server.sent_bytes.items() if "/traces/" not in path}
    first_bytes = sum(size for path, size in sent.items() if "/assets/" not in path)
    report_figure(
        f"planner's page: {num_questions} questions as on the command line; {sum(sent.values()) / 1e6:.1f} MB are "
        f"transferred before the first computed answer, {first_bytes / 1e3:.0f} kB before one computed in advance"
    )
    report_figure(
        f"planner's page, by the clock: an answer computed in advance is there after {shown_s:.2f} s; the first "
        f"computed one, with loading the planner, after {cold_s:.1f} s; further ones after {min(warm_s):.1f} to "
        f"{max(warm_s):.1f} s"
    )
    check_hostile_link(page)
    check_requests(page, server)
    assert [text for text in page.problems if "127.0.0.1:9" not in text] == []


def test_a_site_without_the_planner_says_so(tmp_path: Path, page: Page) -> None:
    shutil.copytree(ROOT / "docs" / "planner", tmp_path / "site" / "planner")
    with served_site(tmp_path / "site") as server:
        page.open(f"{server.origin}/planner/index.html")
        page.wait_for("document.getElementById('notice')?.hidden === false")
        assert "was built without the planner" in text_of(page, "notice")
        assert page.evaluate("document.getElementById('form').hidden")


def test_a_question_that_cannot_be_answered_stops_the_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no page to complete"):
        list(assemble(tmp_path, tmp_path / "build", 1))
