"""The page of a watched folder: nothing in it runs, and a phone shows all of it."""

import shutil
from itertools import cycle
from pathlib import Path

import pytest

from foretune.analyse.watching.watched_run import WatchedRun
from foretune.analyse.watching.watcher import Failure, Watched
from foretune.reports.watch_page import MOST_RUNS, watch_page
from tests.proofs.script_payloads import payloads
from tests.reports.browser import measured
from tests.reports.pages import Page, dangers, policy_of


def watched(texts: list[str], num_waiting: int = 3) -> Watched:
    """Everything that a page can show, with these texts in all places."""
    text = cycle(texts)
    running = tuple(
        WatchedRun(
            path=next(text), model=next(text), kind="training", is_running=True, last_sign_s=999.0, started_s=900.0,
            steps_done=done, num_steps=100, samples_per_s=1.5, planned_samples_per_s=1.4, loss=0.25, memory_bytes=2**30,
            planned_memory_bytes=2**30, elapsed_s=100.0, left_s=900.0, usd_per_hour=3.6,
        )
        for done in (None, 40)
    )  # fmt: skip
    silent = WatchedRun(
        path=next(text), model=next(text), kind="training", is_running=False, last_sign_s=5.0, started_s=None
    )
    return Watched(
        folder=Path(next(text).replace("/", "-").replace("\0", "")[:80]),
        now_s=1000.0,
        running=running,
        preparing=(next(text),),
        silent=(silent,),
        waiting=tuple(next(text) for _ in range(num_waiting)),
        num_by_status={next(text): 2},
        failures=(Failure(path=next(text), status="failed", reason=next(text), log_lines=(next(text), next(text))),),
        spent_usd=1.0,
        num_without_price=1,
        left_s=60.0,
    )


def test_no_text_of_a_run_becomes_part_of_the_page() -> None:
    every = payloads()
    for start in range(0, len(every), 10):
        page = watch_page(watched(every[start : start + 10]), 5.0)
        # Its own, which has no address; see below.
        assert dangers(page) == ["refresh"]
        assert policy_of(page)["default-src"] == "'none'"


def test_it_loads_itself_again_until_it_is_written_no_more() -> None:
    (refresh,) = [
        node for node in Page(watch_page(watched(["a"]), 2.4)).root.find("meta") if _is_refresh(node.attributes)
    ]
    assert refresh.attributes["content"] == "2", "seconds alone: an address would lead elsewhere"
    assert not [
        node for node in Page(watch_page(watched(["a"]), None)).root.find("meta") if _is_refresh(node.attributes)
    ]


def _is_refresh(attributes: dict[str, str]) -> bool:
    return attributes.get("http-equiv") == "refresh"


def test_long_lists_are_cut_and_say_so() -> None:
    page = Page(watch_page(watched(["a"], num_waiting=MOST_RUNS + 7), 5.0)).root
    assert len(page.find("li")) < MOST_RUNS + 20
    assert "and 7 more" in page.text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_phone_shows_everything(tmp_path: Path) -> None:
    path = tmp_path / "watch.html"
    path.write_text(watch_page(watched(["trials/" + "batch_size-16-precision-bf16-" * 4, "x" * 300]), None))
    found = measured(path, 390)
    assert found["scrollWidth"] <= found["width"]
    assert not found["wide"]
    assert not found["cut"]
