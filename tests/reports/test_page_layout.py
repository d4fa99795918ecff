"""Pages on a phone: nothing is cut off, and a table that scrolls says so."""

import shutil
from pathlib import Path

import pytest

import foretune as ft
from foretune.analyse.run_data import gather
from foretune.analyse.run_report import run_report
from foretune.core.values import Finding
from foretune.core.values.evaluation import sample_file
from foretune.planner.asking import PlanRequest, devices_named, plan_everything
from foretune.reports.plan_page import plan_page
from foretune.reports.run_page import report_page
from tests.reports.browser import measured
from tests.reports.pages import Page
from tests.reports.whole_runs import picture, two_configurations, whole_run

_PHONE_PX = 390
_WIDE_PX = 1200
_PROMPTS = ("a small red circle on blue", "a large green star on white", "a cross")


def several(folder: Path) -> str:
    """Three configurations, a failed run with a long reason, several prompts, a study that had too few steps."""
    two_configurations(folder / "runs", prompts=_PROMPTS)
    whole_run(folder / "runs" / "third", method={"kind": "lora", "rank": 64}, prompts=_PROMPTS)
    whole_run(folder / "runs" / "broken", seed=9, status="out of memory", reason="no room for " + "x" * 200)
    finding = Finding(sentence="Not enough steps on this machine: 49 of 150.", evidence=("a",), caveat="It is busy.")
    return report_page(run_report(gather([folder / "runs"]), folder, usd_per_hour=1.2), findings=[finding])


def one(folder: Path) -> str:
    return report_page(run_report(gather([whole_run(folder / "runs" / "only")]), folder))


def planned(folder: Path) -> str:
    # With block swap, a table has the most columns.
    wanted = PlanRequest(target="flux.1-dev", overrides=("method.kind=lora", "levers.block_swap=10"))
    ((_, plans),) = plan_everything(wanted, devices_named("rtx-4090,h100-sxm"), None)
    return plan_page(plans, {plans[0].experiment: "FLUX.1-dev with LoRA"})


def searched(folder: Path) -> str:
    found = ft.recommend("flux.1-dev", {"levers.block_swap": 0}, on="l4,h100-sxm", deadline="6h", draws=True)
    return found.page()


_PAGES = {"several": several, "one": one, "plan": planned, "search": searched}


@pytest.mark.parametrize("name", _PAGES)
def test_every_table_is_in_a_scroll_container_with_a_hint(name: str, tmp_path: Path) -> None:
    page = Page(_PAGES[name](tmp_path))
    tables = page.root.find("table")
    assert tables
    for table in tables:
        assert table.parent is not None
        assert table.parent.attributes.get("class") == "scrolled"
        (hint,) = table.parent.find("p", class_="scroll-hint")
        assert "Scroll sideways" in hint.text


@pytest.mark.parametrize("name", ["several", "one"])
def test_a_stacked_cell_carries_the_name_of_its_column(name: str, tmp_path: Path) -> None:
    """Where a row is a card there is no heading above a number."""
    page = Page(_PAGES[name](tmp_path))
    stacked = page.root.find("table", class_="stacks")
    assert stacked
    for table in stacked:
        heads = [head.text for head in table.find("thead")[0].find("th")]
        for row in table.find("tbody")[0].find("tr"):
            cells = row.find("td")
            if len(cells) == len(heads) - 1:
                assert [cell.attributes["data-label"] for cell in cells] == heads[1:]


def test_samples_are_one_grid_of_prompts_and_models(tmp_path: Path) -> None:
    page = Page(several(tmp_path))
    (grid,) = page.root.find("table", class_="sample-grid")
    heads = [head.text for head in grid.find("thead")[0].find("th")]
    assert heads == ["Prompt", "Base model", "A: LoRA rank 8", "B: LoRA rank 64", "C: full fine-tuning"]
    rows = grid.find("tbody")[0].find("tr")
    assert [row.find("th")[0].text for row in rows] == list(_PROMPTS)
    assert [len(row.find("img")) for row in rows] == [4, 4, 4]
    assert len(page.root.find("img")) == 12, "no pictures elsewhere"
    for image in grid.find("img"):
        # 8 px each, sixteen times.
        assert (image.attributes["width"], image.attributes["height"]) == ("128", "128")
        assert image.attributes["class"] == "crisp"


def test_the_grid_takes_the_images_of_an_evaluation_first(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "runs" / "only")
    (run / "quality" / "samples").mkdir()
    for number, file in enumerate((sample_file("base", 0), sample_file("run", 0))):
        (run / "quality" / file).write_bytes(picture(200, number))
    (grid,) = Page(report_page(run_report(gather([run]), tmp_path))).root.find("table", class_="sample-grid")
    assert [image.attributes["width"] for image in grid.find("img")] == ["200", "200"]
    links = [link.attributes["href"] for link in grid.find("a")]
    assert links == [f"./runs/only/quality/samples/{column}-000.png" for column in ("base", "run")]


def test_older_evaluations_show_their_sheet(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "runs" / "only", grid="before-and-after.png")
    shutil.rmtree(run / "samples")
    page = Page(report_page(run_report(gather([run]), tmp_path)))
    (sheet,) = page.root.find("figure", class_="sheet")
    assert len(sheet.find("img")) == 1
    assert "quality/before-and-after.png" in page.root.text


def test_a_study_without_enough_steps_says_so_at_the_top(tmp_path: Path) -> None:
    first = Page(several(tmp_path)).root.find("section")[0]
    assert "Not enough steps on this machine: 49 of 150." in first.text


@pytest.mark.slow
@pytest.mark.usefixtures("chromium")
@pytest.mark.parametrize("name", ["plan", "search"])
def test_no_table_scrolls_on_a_wide_screen(name: str, tmp_path: Path) -> None:
    """Times and prices stand beside memory without being cut."""
    page = tmp_path / f"{name}.html"
    page.write_text(_PAGES[name](tmp_path), encoding="utf-8")
    assert measured(page, _WIDE_PX)["scrolled"] == []


@pytest.mark.slow
@pytest.mark.usefixtures("chromium")
@pytest.mark.parametrize("name", _PAGES)
def test_nothing_is_wider_than_a_phone(name: str, tmp_path: Path) -> None:
    page = tmp_path / f"{name}.html"
    page.write_text(_PAGES[name](tmp_path), encoding="utf-8")
    found = measured(page, _PHONE_PX)
    assert found["width"] == _PHONE_PX
    assert found["scrollWidth"] <= _PHONE_PX
    assert found["wide"] == []
    assert found["cut"] == []
    assert all(has_hint for _, has_hint in found["scrolled"]), found["scrolled"]
    if name != "plan":
        assert found["scrolled"] == [], "tables of a report fit"
        assert all(width >= 128 and height >= 128 for width, height, _ in found["pictures"])
