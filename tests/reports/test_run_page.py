"""The page of `foretune report`: its order, its words, and how it reads without eyes."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from foretune.analyse.joined_view import joined_views
from foretune.analyse.run_data import gather
from foretune.analyse.run_report import RunReport, run_report
from foretune.analyse.study_summary import stored_studies
from foretune.core.errors import UserError
from foretune.core.values import Finding
from foretune.reports.run_csv import runs_csv, safe
from foretune.reports.run_markdown import escaped, report_markdown
from foretune.reports.run_page import report_page
from tests.analyse.made_runs import asked, make_run
from tests.analyse.made_studies import make_part
from tests.reports.pages import Page, dangers
from tests.reports.whole_runs import ENVIRONMENT, picture, two_configurations, whole_run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = two_configurations(tmp_path_factory.mktemp("runs") / "runs")
    whole_run(folder / "broken", seed=9, status="out of memory", reason="there was no room")
    return folder


@pytest.fixture(scope="module")
def report(place: Path) -> RunReport:
    return run_report(gather([place]), place.parent, usd_per_hour=2.0)


@pytest.fixture(scope="module")
def page(report: RunReport) -> Page:
    finding = Finding(sentence="Two threads are faster.", evidence=("a",), caveat="one seed")
    return Page(report_page(report, findings=[finding]))


def test_sections_are_in_the_order_of_questions(page: Page) -> None:
    keys = [section.attributes["id"] for section in page.root.find("section")]
    assert keys == [
        "result", "configurations", "samples", "quality", "certainty", "setup", "front", "forecast", "losses", "phases",
        "environment", "failures", "runs",
    ]  # fmt: skip


def test_plans_stand_beside_measurements(page: Page, report: RunReport) -> None:
    """Of each configuration a row for its speed, planned a quarter too high, and one for its memory."""
    (section,) = page.root.find("section", id="forecast")
    rows = [[cell.text for cell in row.find("td")] for row in section.find("tr")][1:]
    assert len(rows) == 2 * len(report.configurations)
    for speed, memory in zip(rows[::2], rows[1::2], strict=True):
        assert "speed" in speed
        assert any("samples/s" in cell for cell in speed)
        assert "+25 %" in speed
        assert "memory of the process" in memory
        assert "-7 %" in memory
    text = report_markdown(report)
    assert "planned speed off by +25%" in text
    assert "planned memory off by -7%" in text


def test_the_recommendation_is_said_with_its_interval(page: Page, report: RunReport) -> None:
    (said,) = page.root.find("p", class_="answer-text")
    made = report.tasks[0].recommendation
    assert said.text == "Winner: B (full fine-tuning)."
    assert re.match(
        r"Its caption accuracy of 0\.\d+ \(0\.\d+ to 0\.\d+\) is the highest, .* than that of A", made.detail
    )
    assert page.root.find("p", class_="answer-detail")[0].text == made.detail
    (row,) = page.root.find("tr", class_="chosen")
    assert "full" in row.text
    assert "Two threads are faster." in page.root.text


def test_every_cell_stands_below_a_heading(page: Page) -> None:
    """Rows are as wide as their table's head, with cells counted that reach over several columns or rows."""
    tables = page.root.find("table")
    assert len(tables) >= 7
    for table in tables:
        (head,) = table.find("thead")
        width = len(head.find("th"))
        for body in table.find("tbody"):
            from_above = 0
            for row in body.find("tr"):
                cells = [*row.find("th"), *row.find("td")]
                own = sum(int(cell.attributes.get("colspan") or 1) for cell in cells)
                assert own + from_above == width, f"{table.children[0].text}: {row.text}"
                from_above += sum(int(cell.attributes.get("rowspan") or 1) > 1 for cell in cells)


def test_it_reads_without_eyes(page: Page) -> None:
    levels = [int(node.name[1]) for node in page.root.find("*") if re.fullmatch(r"h\d", node.name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    for table in page.root.find("table"):
        assert table.children[0].name == "caption"
        assert table.children[0].text
        assert all("scope" in head.attributes for head in table.find("th"))
    drawings = page.root.find("svg")
    assert len(drawings) >= 6
    for drawing in drawings:
        assert drawing.attributes["role"] == "img"
        assert [child.name for child in drawing.children[:2]] == ["title", "desc"]
        assert all(child.text for child in drawing.children[:2])
    assert all(image.attributes["alt"] for image in page.root.find("img"))
    ids = [node.attributes["id"] for node in page.root.find("*") if "id" in node.attributes]
    assert len(ids) == len(set(ids))


def test_it_is_inert(report: RunReport) -> None:
    assert dangers(report_page(report)) == []


def test_a_run_that_failed_says_why(page: Page) -> None:
    (section,) = [section for section in page.root.find("section") if section.attributes["id"] == "failures"]
    assert "out of memory" in section.text
    assert "there was no room" in section.text


def test_unlike_environments_are_not_mixed(tmp_path: Path) -> None:
    other = {**ENVIRONMENT, "cpu": "another"}
    for seed in range(2):
        whole_run(tmp_path / "runs" / f"a-{seed}", seed=seed)
        whole_run(tmp_path / "runs" / f"b-{seed}", seed=seed, environment=other)
    report = run_report(gather([tmp_path / "runs"]), tmp_path)
    assert [one.label for one in report.configurations] == [
        "LoRA rank 8 on 2 cores of another",
        "LoRA rank 8 on 2 cores of one",
    ]
    assert (
        "different environments: cpu: another against one"
        in (report.tasks[0].recommendation.finding.caveat or "").lower()
    )
    assert "never averaged together: cpu" in report_page(report)


def test_configurations_of_a_study_have_its_names_and_their_machines(tmp_path: Path) -> None:
    for place, (name, cpu) in enumerate((("laptop", "a laptop's processor"), ("cluster-gpu", "a server's"))):
        for protocol in ("equal-time", "equal-steps"):
            make_part(
                tmp_path, name, 0, name=protocol, protocol=protocol, order=(0, place), pass_s=0.5,
                environment={**ENVIRONMENT, "cpu": cpu}, about={"usd_per_hour": 1.0},
            )  # fmt: skip
    report = run_report(gather([tmp_path]), tmp_path)
    assert [one.label for one in report.configurations] == [
        "cluster-gpu (equal-steps)", "cluster-gpu (equal-time)", "laptop (equal-steps)", "laptop (equal-time)",
    ]  # fmt: skip
    assert report.prices == ("$1 an hour, as its study says",)
    for protocol in ("equal-time", "equal-steps"):
        (tmp_path / protocol / "study.json").write_text("{}", encoding="utf-8")
    joined = joined_views(stored_studies([tmp_path]).studies)
    page = Page(report_page(report, joined=joined))
    assert "2 cores of a laptop's processor" in page.root.find("section", id="configurations")[0].text
    (section,) = page.root.find("section", id="joined")
    for words in ("Quality at equal time beside speed at equal steps", "inference, steps/s", "training, iterations/s"):
        assert words in section.text
    text = report_markdown(report, joined=joined)
    assert "| inference, steps/s | 2.0 | 2.0 |" in text
    assert "| laptop (equal-time) | 2 cores of a laptop's processor |" in text


def test_all_findings_of_a_study_are_shown(report: RunReport) -> None:
    findings = [Finding(sentence=f"Finding number {number}.", evidence=()) for number in range(20)]
    page = report_page(report, findings=findings)
    assert all(finding.sentence in page for finding in findings)


def test_a_metric_nobody_measured_is_refused(place: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'caption accuracy'"):
        run_report(gather([place]), place.parent, quality="caption accurracy")
    with pytest.raises(UserError, match=r"Quality style: not every run has it.* Run: foretune evaluate"):
        run_report(gather([place]), place.parent, quality="style")
    loss = run_report(gather([place]), place.parent, quality="held-out loss")
    assert loss.tasks[0].measures[0].name == "held-out loss"


def test_markdown_counts_and_names_what_it_speaks_of(tmp_path: Path) -> None:
    whole_run(tmp_path / "runs" / "only")
    alone = report_markdown(run_report(gather([tmp_path]), tmp_path))
    assert "\nOne configuration, one run with seed 0.\n" in alone
    assert "###" not in alone
    whole_run(tmp_path / "runs" / "other", model="owner/other")
    whole_run(tmp_path / "runs" / "broken", model="owner/other", seed=1, status="failed", reason="no room")
    both = report_markdown(run_report(gather([tmp_path]), tmp_path))
    assert "### tiny, shapes\n" in both
    assert "### other, shapes\n" in both
    assert "| LoRA rank 8, other | 1 of 2 |" in both


def test_phases_stand_in_one_order_in_all_bars(tmp_path: Path) -> None:
    """Where one configuration spends its time otherwise, its parts are longer or shorter, not elsewhere."""
    for name, forward in (("full", 0.02), ("lora", 0.08)):
        method = {"kind": name} if name == "full" else {"kind": name, "rank": 4}
        path = make_run(tmp_path / name, [0.1] * 4, experiment=asked(method=method))
        log = path / "events.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for line in lines:
            if line["kind"] == "step":
                line["phases_s"] = {"forward": forward, "backward": 0.1 - forward}
        log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    page = Page(report_page(run_report(gather([tmp_path]), tmp_path)))
    (bars,) = page.root.find("svg", class_="bars")
    parts = [part.text.split(", ")[1].split(":")[0] for part in bars.find("rect")]
    assert parts[:2] == parts[2:]
    assert set(parts) == {"forward", "backward"}


def test_other_models_and_data_do_not_lengthen_names(tmp_path: Path) -> None:
    """What sets tasks apart is said in their headings; names say what sets configurations of one task apart."""
    whole_run(tmp_path / "runs" / "a", method={"kind": "full"})
    whole_run(tmp_path / "runs" / "b")
    other: dict[str, Any] = {"model": "owner/other", "num_steps": 12, "prompts": ("a large blue cross on red",)}
    whole_run(tmp_path / "runs" / "c", method={"kind": "lora", "rank": 4}, **other)
    report = run_report(gather([tmp_path]), tmp_path)
    assert [[one.label for one in task.configurations] for task in report.tasks] == [
        ["LoRA rank 4"],
        ["LoRA rank 8", "full fine-tuning"],
    ]
    header = runs_csv(report).splitlines()[0].split(",")
    assert len(header) == len(set(header)), "each column once"


def test_one_run_alone_has_a_page(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "runs" / "only")
    report = run_report(gather([run]), tmp_path)
    page = Page(report_page(report))
    first = page.root.find("section")[0]
    assert first.find("h2")[0].text == "Before and after"
    (grid,) = first.find("table", class_="sample-grid")
    assert [head.text for head in grid.find("thead")[0].find("th")] == [
        "Prompt",
        "Before: base model",
        "After training",
    ]
    assert len(grid.find("img")) == 2
    (changed,) = (table for table in first.find("table") if table is not grid)
    assert [row.find("th")[0].text.split()[0] for row in changed.find("tbody")[0].find("tr")] == ["caption", "held-out"]
    (answer,) = first.find("p", class_="answer-text")
    assert answer.text == (
        "LoRA rank 8: no change in caption accuracy shown. 0.50 before, 0.50 after: 0.00 (-0.03 to 0.03), "
        "one run, interval over its prompts."
    )
    assert "choose" not in page.root.text


def test_markdown_and_csv_tell_the_same(report: RunReport) -> None:
    written = report_markdown(report, title="A | b")
    assert written.startswith("# A \\| b\n")
    assert f"**{escaped(report.tasks[0].recommendation.headline)}.**" in written
    head, *rows = runs_csv(report).splitlines()
    assert head.startswith(
        "run,path,configuration,model,seed,status,steps,time_s,speed_samples_per_s,peak_memory_bytes,"
    )
    assert len(rows) == len(report.runs)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", " =1"])
def test_no_cell_is_a_formula(text: str) -> None:
    assert safe(text) == f"'{text}"
    assert safe(-1.5) == "-1.5"
    assert safe(None) == ""


def test_pictures_of_other_places_are_left_out(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "runs" / "only", warnings=("the disk is slow",))
    (tmp_path / "private.png").write_bytes(picture())
    file = run / "quality" / "evaluation.json"
    file.write_text(file.read_text(encoding="utf-8").replace("grid.png", "../../../private.png"), encoding="utf-8")
    num_pictures = len(Page(report_page(run_report(gather([run]), tmp_path))).root.find("img"))
    assert num_pictures == 2, "the samples alone"
    assert "the disk is slow" in report_page(run_report(gather([run]), tmp_path))


def test_time_that_was_held_equal_is_no_axis(tmp_path: Path) -> None:
    """Whose clock stopped a moment earlier is nothing to choose by."""
    for number, kind in enumerate(("full", "lora")):
        method = {"kind": kind} if kind == "full" else {"kind": kind, "rank": 4}
        experiment = asked(method=method, train={"steps": None, "seconds": 2})
        make_run(tmp_path / kind, [0.1 + 0.001 * number] * 60, experiment=experiment, peak_host_bytes=2**30 + number)
    report = run_report(gather([tmp_path]), tmp_path, usd_per_hour=1.0)
    (task,) = report.tasks
    assert [measure.name for measure in task.axes] == ["peak memory"]
    assert {measure.name for measure in task.measures} == {"time", "speed", "peak memory", "money"}
    priced = run_report(gather([tmp_path]), tmp_path).tasks[0]
    assert [measure.name for measure in priced.axes] == ["peak memory"]


def test_the_interval_of_a_change_is_stated_as_it_was_computed(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "runs" / "only")
    file = run / "quality" / "evaluation.json"
    evaluation = json.loads(file.read_text(encoding="utf-8"))
    for difference in evaluation["differences"]:
        difference["confidence"] = 0.9833
    file.write_text(json.dumps(evaluation), encoding="utf-8")
    page = report_page(run_report(gather([run]), tmp_path))
    assert "the interval of a change is at 98.3 %, which allows for the number of metrics" in page
