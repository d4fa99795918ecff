"""Pages with a table of optimizers or trackers: one row for each, with what it needs."""

import re
from pathlib import Path

from foretune.choices.optimizers import OPTIMIZER_SPECS
from foretune.core.trackers import TRACKER_SPECS

DOCS = Path(__file__).parents[2] / "docs"


def rows(page: str, first_heading: str) -> list[list[str]]:
    """The cells of the table whose first column has this heading."""
    text = (DOCS / page).read_text(encoding="utf-8")
    (table,) = re.findall(rf"^\| {re.escape(first_heading)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_every_optimizer_has_its_row() -> None:
    found = rows("optimizers.md", "`optimizer.kind`")
    assert [row[0] for row in found] == [f"`{kind}`" for kind in OPTIMIZER_SPECS]
    for (_, library, state_bytes, devices, install), spec in zip(found, OPTIMIZER_SPECS.values(), strict=True):
        assert install == f"`foretune[{'train' if spec.library is None else 'optimizers'}]`"
        assert spec.library is None or library == spec.library.replace("_", "-")
        assert round(float(state_bytes.split(",")[0])) == spec.state_bytes
        assert (devices == "CUDA") == spec.is_paged


def test_every_tracker_has_its_row() -> None:
    assert [row[0] for row in rows("runs.md", "tracker, install `foretune[NAME]`")] == list(TRACKER_SPECS)
    assert all(spec.packages for spec in TRACKER_SPECS.values()), "the heading tells every reader to install something"
