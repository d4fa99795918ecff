"""Writes the table of waits in docs/profiling.md: `python -m tests.docs.host_waits_page`."""

import re
from pathlib import Path

from tests.simulated.host_waits import HOST_WAITS

PAGE = Path(__file__).parents[2] / "docs" / "profiling.md"
_PART = re.compile(r"(<!-- waits -->\n).*?(<!-- end of waits -->)", re.DOTALL)


def written(page: str) -> str:
    """The page with its table."""
    return _PART.sub(lambda found: f"{found[1]}{table()}\n{found[2]}", page)


def table() -> str:
    lines = ["| with | waits in a step | reason | whose code |", "|---|---|---|---|"]
    rows = (f"| {wait.choice} | {wait.how_often} | {wait.reason} | {wait.owner} |" for wait in HOST_WAITS)
    return "\n".join([*lines, *rows])


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
