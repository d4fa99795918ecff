"""The practitioners' questions: each is one that `foretune plan` accepts, and each guide has a source."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.practitioners import PAGE, answer_lines, command
from foretune.planner.asking import PlanRequest, asked_of
from foretune.planner.sizing import size_of
from foretune.trace.shipped import geometries

FILE = Path(__file__).parents[2] / "docs" / "data" / "practitioner_questions.yaml"
DATA = yaml.safe_load(FILE.read_text(encoding="utf-8"))
QUESTIONS = DATA["questions"]
SIZE_OPTIONS = {"frames", "height", "width"}


def test_each_question_has_its_own_id() -> None:
    ids = [question["id"] for question in QUESTIONS]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["id"])
def test_plan_accepts_the_question(question: dict[str, Any]) -> None:
    ask = question["ask"]
    keys = {key: value for key, value in ask.items() if key != "model" and key not in SIZE_OPTIONS}
    asked = asked_of(PlanRequest(target=ask["model"], overrides=tuple(f"{key}={value}" for key, value in keys.items())))
    geometry = geometries()[question["model"]]
    size_of(
        asked.experiment,
        geometry,
        height_px=ask.get("height"),
        width_px=ask.get("width"),
        num_frames=ask.get("frames"),
    )
    assert ask["model"] == question["model"]
    assert asked.experiment.method.kind == question["method"]
    assert ("frames" in ask) == (geometry.default_num_frames > 1)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["id"])
def test_each_guide_is_cited(question: dict[str, Any]) -> None:
    for guide in question["guides"]:
        assert set(guide) - {"speed"} == {"program", "settings", "memory", "source", "where", "confidence"}
        assert guide["program"] in DATA["sources"]
        assert guide["source"]
        assert guide["where"]
        assert guide["confidence"] in ("high", "medium", "low")


@pytest.mark.parametrize("part", ["savings_order", "slowdowns"])
def test_each_saving_is_cited(part: str) -> None:
    for row in DATA[part]:
        assert row["program"] in DATA["sources"]
        assert row["source"]
        assert row["where"]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["id"])
def test_the_page_has_the_question_with_a_comparison(question: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"## {question['title']}\n" in page
    assert command(question) in page
    assert question["comparison"] in page


def test_the_answers_on_the_page_are_those_of_the_planner(proof_size: Callable[[int, int], int]) -> None:
    """A few of them, others whenever the questions change; all with FORETUNE_PROOFS=full."""
    chosen = random.Random(FILE.read_text(encoding="utf-8")).sample(QUESTIONS, proof_size(len(QUESTIONS), 4))
    page = PAGE.read_text(encoding="utf-8")
    for question in chosen:
        section = page.partition(f"## {question['title']}\n")[2].partition("\n## ")[0]
        lines = answer_lines(question)
        assert all(f"\n{line}" in section for line in lines), "Run: python benchmarks/practitioners.py"
        assert ("Further options" in section) == any(line.startswith("Further options") for line in lines)
        assert "COMPARE" not in section


def test_every_question_has_a_time() -> None:
    """Only what no trace with shapes ships for may have none, and the page names the reason."""
    page = PAGE.read_text(encoding="utf-8")
    sections = [page.partition(f"## {question['title']}\n")[2].partition("\n## ")[0] for question in QUESTIONS]
    timed = [" Time: " in section for section in sections]
    assert sum(timed) >= 0.85 * len(QUESTIONS)
    assert all(one or "No step time, not known: " in section for one, section in zip(timed, sections, strict=True))
