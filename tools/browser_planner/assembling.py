"""Assembles the page: what runs in the browser, what the form offers, answers computed in advance, its style."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretune import __version__
from foretune.core.errors import UserError
from foretune.reports.part_colours import colour_rules
from tools.browser_planner.answering import answer, choices
from tools.browser_planner.common_questions import common_questions
from tools.browser_planner.downloads import download_all, require_node
from tools.browser_planner.modules import ROOT
from tools.browser_planner.packing import Known, digest_of, pack_all, source_files
from tools.browser_planner.question import Question

MANIFEST = "planner.json"
"""The page reads it first; a site without it says that it was built without the planner. It is written last."""
_ASSETS = "assets"


def assemble(page: Path, build: Path, num_answers: int | None) -> Iterator[str]:
    """Fills the page's folder. Yields lines that say what was done."""
    if not (page / "index.html").is_file():
        raise UserError(f"{page} has no page to complete. Run: zensical build --strict --clean")
    if num_answers is not None and num_answers < 1:
        raise UserError("--answers must be at least 1")
    require_node()
    (page / MANIFEST).unlink(missing_ok=True)
    pyodide, wheels = download_all(build)
    write_style(page)
    questions = common_questions()[:num_answers]
    index = write_answers(questions, page / "answers", build)
    first = json.loads((page / "answers" / index[questions[0].fragment]).read_text(encoding="utf-8"))
    pack_all(pyodide, wheels, build, page / _ASSETS, Known(questions[0], first))
    write_manifest(page, index)
    size_bytes = sum(path.stat().st_size for path in loaded_files(page))
    yield (
        f"planner: {page}, {len(index)} answers computed in advance; a browser that computes loads "
        f"{size_bytes / 1e6:.1f} MB"
    )


def write_style(page: Path) -> None:
    """The style of plans' pages, with the colours of memory; the page adds its own."""
    sheets = [ROOT / "src" / "foretune" / "reports" / name for name in ("page.css", "plan_page.css")]
    text = "".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    (page / "report.css").write_text(text + colour_rules(), encoding="utf-8")


def write_answers(questions: list[Question], folder: Path, build: Path) -> dict[str, str]:
    """One file for each question; returns their names by the fragment of the question's link."""
    folder.mkdir(exist_ok=True)
    kept = build / f"answers-{digest_of(source_files())}"
    kept.mkdir(parents=True, exist_ok=True)
    index: dict[str, str] = {}
    for number, question in enumerate(questions):
        name = f"{number:03}.json"
        stored = kept / f"{question.fragment}.json"
        if not stored.is_file():
            text = json.dumps(answer_or_raise(question), ensure_ascii=False, separators=(",", ":"))
            # Complete or not there at all.
            part = stored.with_suffix(".part")
            part.write_text(text, encoding="utf-8")
            part.rename(stored)
        (folder / name).write_bytes(stored.read_bytes())
        index[question.fragment] = name
    return index


def answer_or_raise(question: Question) -> dict[str, Any]:
    """A question that we chose ourselves has an answer, from traces that ship."""
    # Hundreds of thousands of objects that all stay for one answer.
    gc.disable()
    found = answer(vars(question))
    gc.enable()
    assert "problems" not in found, f"{question.command()}: {found['problems']}"
    assert not any(" live-" in text for _, lines in found["fine_print"] for text in lines), question.command()
    return found


def write_manifest(page: Path, index: dict[str, str]) -> None:
    traces = sorted(path.stem for path in (page / _ASSETS / "traces").glob("*.zip"))
    size_bytes = sum(path.stat().st_size for path in loaded_files(page))
    manifest = {
        "version": __version__,
        **choices(),
        "answers": index,
        "traces": traces,
        "size_mb": round(size_bytes / 1e6, 1),
    }
    (page / MANIFEST).write_text(json.dumps(manifest, separators=(",", ":")), encoding="utf-8")


def loaded_files(page: Path) -> list[Path]:
    """What a browser loads before it computes the first answer, without traces of models."""
    return [path for path in (page / _ASSETS).iterdir() if path.is_file() and path.name != "licences.txt"]
