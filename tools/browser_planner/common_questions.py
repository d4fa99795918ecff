"""The hundred questions that are asked most, of common_questions.yaml.

Their answers are computed where the site is built, so that the page shows them before it has loaded the planner.
"""

from collections.abc import Iterator
from pathlib import Path

from foretune.config.yaml_files import load_mapping
from tools.browser_planner.question import Question


def common_questions() -> list[Question]:
    """The first is the page's own."""
    return list(_common())


def _common() -> Iterator[Question]:
    lists = load_mapping(Path(__file__).with_suffix(".yaml"))
    for model in lists["models"]:
        yield from (Question(model=model, on=card) for card in lists["cards"])
    for model in lists["by_memory"]["models"]:
        yield from (Question(model=model, on=size) for size in lists["by_memory"]["sizes"])
    for model in lists["full_fine_tuning"]["models"]:
        yield from (Question(model=model, method="full", on=card) for card in lists["full_fine_tuning"]["cards"])
