"""The table of planted bugs fits the source: it is run on request only, and must not have gone stale by then."""

import pytest

from tests.mutants.bug import Bug
from tests.mutants.bugs import BUGS
from tests.mutants.bugs_of_gpus import BUGS as BUGS_OF_GPUS
from tests.mutants.plant import ROOT

FEWEST_BUGS = 41
FEWEST_BUGS_OF_GPUS = 40


def test_h19_there_are_enough_bugs_in_every_layer() -> None:
    assert len(BUGS) >= FEWEST_BUGS
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    layers = {bug.file.split("/")[2] for bug in BUGS}
    assert layers >= {
        "analyse", "choices", "config", "core", "data", "executors", "models", "planner", "quality", "record",
        "reports", "stats", "step", "sweeps", "trace", "training",
    }  # fmt: skip


def test_g2_there_are_enough_bugs_of_gpus_everywhere() -> None:
    assert len(BUGS_OF_GPUS) >= FEWEST_BUGS_OF_GPUS
    assert len({bug.name for bug in (*BUGS, *BUGS_OF_GPUS)}) == len(BUGS) + len(BUGS_OF_GPUS)
    assert all(bug.cpu_tests for bug in BUGS_OF_GPUS)
    packages = {bug.file.split("/")[2] for bug in BUGS_OF_GPUS}
    assert packages >= {"accelerator", "core", "data", "executors", "models", "step", "training"}


@pytest.mark.parametrize("bug", [*BUGS, *BUGS_OF_GPUS], ids=lambda bug: bug.name)
def test_h19_a_bug_can_be_planted(bug: Bug) -> None:
    text = (ROOT / bug.file).read_text(encoding="utf-8")
    assert text.count(bug.old) == 1, f"{bug.file} has changed: put its new text into the table of bugs"
    assert bug.new != bug.old
    compile(text.replace(bug.old, bug.new), bug.file, "exec")
    assert bug.tests
    for test in (*bug.tests, *bug.cpu_tests):
        file, _, name = test.partition("::")
        content = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0]}(" in content if name else True, test
