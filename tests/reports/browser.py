"""What a real browser makes of a page at a given width, measured from outside: pages themselves run no scripts."""

import html
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.waiting import HANG_S

_MEASURE = """
const view = frame.contentWindow, page = frame.contentDocument;
const all = [...page.querySelectorAll("body *")].filter(e => view.getComputedStyle(e).clipPath === "none");
const wide = all.filter(e => !e.closest(".scrolled") && !e.closest(".hidden") &&
  e.getBoundingClientRect().width > 0 && e.getBoundingClientRect().right > view.innerWidth + 1);
const cut = all.filter(e => e.scrollWidth > e.clientWidth + 1 && ["hidden", "clip"].includes(
  view.getComputedStyle(e).overflowX) && !e.closest(".hidden") && !e.closest("thead"));
const scrolled = [...page.querySelectorAll(".scrolled")].filter(e => e.scrollWidth > e.clientWidth + 1);
const seen = e => e !== null && view.getComputedStyle(e).display !== "none" &&
  view.getComputedStyle(e).visibility === "visible";
document.getElementById("answer").textContent = JSON.stringify({
  width: view.innerWidth, scrollWidth: page.documentElement.scrollWidth,
  wide: wide.map(e => e.outerHTML.slice(0, 120)), cut: cut.map(e => e.outerHTML.slice(0, 120)),
  scrolled: scrolled.map(e => [e.getAttribute("aria-label"), seen(e.querySelector(".scroll-hint"))]),
  pictures: [...page.images].map(e => [e.clientWidth, e.clientHeight, e.naturalWidth]),
});
"""


def measured(page: Path, width_px: int) -> dict[str, Any]:
    """Widths in a frame of so many pixels: windows cannot be as narrow as a phone."""
    wrapper = page.with_name(f"{page.stem}-{width_px}-frame.html")
    frame = f'<iframe id="frame" src="{page.name}" style="border:0;width:{width_px}px;height:2000px"></iframe>'
    script = f"<script>frame.onload = () => setTimeout(() => {{{_MEASURE}}}, 500);</script>"
    wrapper.write_text(f'<!DOCTYPE html><pre id="answer"></pre>{frame}{script}', encoding="utf-8")
    options = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files",
        # Styles that depend on whether something scrolls come a frame after the layout.
        "--virtual-time-budget=5000",
    )  # fmt: skip
    profile = page.with_name(f"profile-{page.stem}-{width_px}")
    process = subprocess.Popen(
        ["chromium", *options, f"--user-data-dir={profile}", "--dump-dom", wrapper.as_uri()],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        text = process.communicate(timeout=HANG_S)[0].decode("utf-8", errors="replace")
    except subprocess.TimeoutExpired:
        # Its own processes are in the session that was started for it.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    answer = re.search(r'<pre id="answer">(.*?)</pre>', text, re.DOTALL)
    assert answer is not None, text[:500]
    found: dict[str, Any] = json.loads(html.unescape(answer[1]))
    return found
