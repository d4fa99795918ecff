"""The table of planted bugs fits the source: it is run on request only, and must not have gone stale by then."""

import pytest

from tests.mutants.bug import Bug
from tests.mutants.bugs import BUGS
from tests.mutants.plant import ROOT

FEWEST_BUGS = 41


def test_h19_there_are_enough_bugs_in_every_layer() -> None:
    assert len(BUGS) >= FEWEST_BUGS
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    layers = {bug.file.split("/")[2] for bug in BUGS}
    assert layers >= {
        "analyse", "choices", "config", "core", "data", "executors", "models", "planner", "quality", "record",
        "reports", "stats", "step", "sweeps", "trace", "training",
    }  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_h19_a_bug_can_be_planted(bug: Bug) -> None:
    text = (ROOT / bug.file).read_text(encoding="utf-8")
    assert text.count(bug.old) == 1, f"{bug.file} has changed: put its new text into the table of bugs"
    assert bug.new != bug.old
    compile(text.replace(bug.old, bug.new), bug.file, "exec")
    assert bug.tests
    for test in bug.tests:
        file, _, name = test.partition("::")
        content = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0]}(" in content if name else True, test
