"""The fixtures and hooks of the root conftest, tried in a pytest of their own."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.slow_tests import dealt, slow_first
from tests.turns import NUM_TURNS

ROOT_CONFTEST = Path(__file__).parents[1] / "conftest.py"
_ROOT = ROOT_CONFTEST.parents[1]

TESTS = """
import sys
import pytest

def test_figure(proof_size, report_figure):
    report_figure(f"size {proof_size(20, 2)}")
    report_figure("second line")

def test_no_torch_yet():
    assert "torch" not in sys.modules
"""
GPU_TEST = """
import pytest

@pytest.mark.gpu
def test_on_gpu():
    raise AssertionError("must not run")
"""
LACKING_TEST = """
from conftest import lacking

def test_with_a_tool():
    lacking("a tool: apt-get install tool")

def test_in_a_browser(chromium):
    raise AssertionError("must not run")
"""


def run_pytest(directory: Path, *arguments: str, code: int = 0, **variables: str) -> str:
    (directory / "conftest.py").write_text(ROOT_CONFTEST.read_text())
    (directory / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  gpu: needs CUDA\n  takes_turns: one of many\n  every_run: each time\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "FORETUNE_", "CI"))}
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *arguments]
    finished = subprocess.run(
        command,
        cwd=directory,
        env={**kept, "PYTHONPATH": str(_ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == code, finished.stdout + finished.stderr
    return finished.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_figures_are_shown_once_with_and_without_workers(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_planted.py").write_text(TESTS)
    shown = run_pytest(tmp_path, "-n", workers)
    assert shown.count("test_planted.py::test_figure: size 2\n") == 1
    assert shown.count("test_planted.py::test_figure: second line\n") == 1
    assert "a tenth of full size" in shown


def test_proofs_at_full_size(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(TESTS)
    shown = run_pytest(tmp_path, FORETUNE_PROOFS="full")
    assert "test_planted.py::test_figure: size 20\n" in shown
    assert "proofs at full size" in shown


def test_gpu_tests_are_skipped_on_request_without_importing_torch(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(GPU_TEST)
    (tmp_path / "test_zlast.py").write_text(TESTS)
    shown = run_pytest(tmp_path, SKIP_GPU_TESTS="1")
    assert "SKIP_GPU_TESTS=1" in shown
    assert "2 passed, 1 skipped" in shown


ONCE_TESTS = """
import json
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(6))
def test_number(number, computed_once):
    def compute():
        with (Path(__file__).parent / "computed.txt").open("a") as file:
            file.write("once\\n")
        return json.dumps({"value": 7})

    assert json.loads(computed_once("number", compute)) == {"value": 7}
"""
ORDER_TEST = """
import pytest

@pytest.fixture
def noted(request):
    worker = getattr(request.config, "workerinput", {}).get("workerid", "alone")
    with open(f"ran-{worker}.txt", "a") as file:
        file.write(request.node.path.name + "\\n")

@pytest.mark.parametrize("number", range(4))
def test_it(number, noted):
    pass
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_all_workers_look_at_is_computed_once(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_planted.py").write_text(ONCE_TESTS)
    shown = run_pytest(tmp_path, "-n", workers, "--dist", "load")
    assert "6 passed" in shown
    assert (tmp_path / "computed.txt").read_text() == "once\n"


def ran(directory: Path, worker: str) -> list[str]:
    """The files in the order in which a worker came to their tests, each once for all tests that follow one another."""
    return [name for name, _ in itertools.groupby((directory / f"ran-{worker}.txt").read_text().split())]


def test_slow_files_come_first_on_every_worker(tmp_path: Path) -> None:
    for name in "abcdefgh":
        (tmp_path / f"test_{name}.py").write_text(ORDER_TEST)
    seconds = {
        "test_c.py::test_it[0]": 10,
        "test_f.py::test_it[3]": 50,
        "test_h.py::test_it[1]": 30,
        "gone.py::test": 9,
    }
    (tmp_path / "slow_tests.json").write_text(json.dumps(seconds))
    run_pytest(tmp_path)
    assert ran(tmp_path, "alone") == [f"test_{name}.py" for name in "fhcabdeg"]
    run_pytest(tmp_path, "-n", "2", "--dist", "worksteal")
    assert {ran(tmp_path, worker)[0] for worker in ("gw0", "gw1")} == {"test_f.py", "test_h.py"}


def test_slow_files_are_dealt_out_to_whoever_has_least_to_do() -> None:
    """Rows are as long as those that `--dist worksteal` cuts: five tests of eleven, then six."""
    items = [
        SimpleNamespace(nodeid=f"{name}::test", get_closest_marker=lambda _, name=name: name == "g" or None)
        for name in "aabcdeffghi"
    ]
    ordered = slow_first(cast(Any, items), 2, {"c::test": 10, "f::test": 25, "h::test": 30})
    # The marker of g says 20 s, so both rows begin with 50 s, and c comes to the first that is done.
    assert "".join(item.nodeid[0] for item in ordered) == "ffcaa" + "hgbdei"


def test_turns_take_about_as_long_as_one_another() -> None:
    seconds = {"30": 30.0, "20": 20.0, "11": 11.0, "10": 10.0}
    items = [SimpleNamespace(nodeid=name, get_closest_marker=lambda _: None) for name in ("10", "a", "30", "11", "20")]
    hands = dealt(cast(Any, items), 2, seconds)
    assert [[item.nodeid for item in hand] for hand in hands] == [["30", "10"], ["20", "11", "a"]]


def test_quick_tests_that_take_turns_go_round() -> None:
    items = [SimpleNamespace(nodeid=str(number), get_closest_marker=lambda _: None) for number in range(7)]
    hands = dealt(cast(Any, items), 5, {})
    assert [[item.nodeid for item in hand] for hand in hands] == [["0", "5"], ["1", "6"], ["2"], ["3"], ["4"]]


def test_the_slowest_files_are_shown_and_stored_on_request(tmp_path: Path) -> None:
    slow = "import time\n\ndef test_slow():\n    time.sleep(0.2)\n"
    (tmp_path / "test_slow.py").write_text(slow)
    (tmp_path / "test_quick.py").write_text("def test_quick():\n    pass\n")
    before = {"test_gone.py::test_it": 9, "test_quick.py::test_other": 7, "test_slow.py::test_slow": 99}
    (tmp_path / "slow_tests.json").write_text(json.dumps(before))
    shown = run_pytest(tmp_path)
    table = shown.partition("slowest 20 files of tests")[2]
    assert 0 < table.index("test_slow.py") < table.index("test_quick.py")
    assert json.loads((tmp_path / "slow_tests.json").read_text()) == before
    run_pytest(tmp_path, "--store-slow-tests")
    stored = json.loads((tmp_path / "slow_tests.json").read_text())
    assert stored == {"test_quick.py::test_other": 7}, "one did not run, one was quick, the file of one is gone"


def test_every_slow_test_is_in_a_file_that_exists() -> None:
    names = json.loads((ROOT_CONFTEST.parent / "slow_tests.json").read_text())
    assert [name for name in names if not (_ROOT / name.partition("::")[0]).is_file()] == []
    assert list(names) == sorted(names)


def test_what_cannot_run_is_skipped_and_fails_in_ci(tmp_path: Path) -> None:
    """Otherwise CI would pass without the proofs that need a browser or a tracer."""
    (tmp_path / "test_planted.py").write_text(LACKING_TEST)
    no_programs = str(tmp_path)
    shown = run_pytest(tmp_path, PATH=no_programs)
    assert "2 skipped" in shown
    assert "needs a tool: apt-get install tool" in shown
    for shown in (
        run_pytest(tmp_path, code=1, PATH=no_programs, CI="1"),
        run_pytest(tmp_path, code=1, PATH=no_programs, FORETUNE_NO_SKIPS="1"),
    ):
        assert "1 failed, 1 error" in shown
        assert "CI needs a tool: apt-get install tool" in shown
        assert "CI needs the chromium browser: apt-get install chromium" in shown


TURN_TESTS = """
import pytest

def test_always():
    pass

@pytest.mark.takes_turns
@pytest.mark.parametrize("number", range(9))
def test_number(number):
    pass
"""


FAMILY_TESTS = """
import pytest

@pytest.mark.parametrize("name", ["flux", "sd3", "sdxl", "wan", "mochi", "ddpm"])
def test_family(name):
    pass

@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_two(name):
    pass

@pytest.mark.parametrize("name", ["one", "two", "three", "four", "five", "six"])
def test_other(name):
    pass
"""


SLOW_TESTS = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_slow(number):
    pass

@pytest.mark.every_run
def test_basic():
    pass
"""


def test_slow_tests_take_turns_by_the_list_unless_everything_depends_on_them(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(SLOW_TESTS)
    seconds = {f"test_planted.py::test_slow[{number}]": 5 + number for number in range(5)}
    (tmp_path / "slow_tests.json").write_text(json.dumps({**seconds, "test_planted.py::test_basic": 9}))
    # The list does not have the last of the six.
    shown = run_pytest(tmp_path, "-v", FORETUNE_TAKE_TURNS="1", FORETUNE_PROOFS_TURN=str(NUM_TURNS))
    assert "3 passed, 4 deselected" in shown
    assert "test_slow[4]" in shown, "the slowest is in the first turn"
    assert "7 passed" in run_pytest(tmp_path)


def test_the_same_question_about_many_families_takes_turns_without_a_mark(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(FAMILY_TESTS)
    # Six families in twelve turns; what is asked about two of them, and what is not about families, runs each time.
    for turn, outcome in (("12", "9 passed, 5 deselected"), ("18", "8 passed, 6 deselected")):
        assert outcome in run_pytest(tmp_path, FORETUNE_TAKE_TURNS="1", FORETUNE_PROOFS_TURN=turn)


def test_tests_that_take_turns_all_run_once_in_all_turns(tmp_path: Path) -> None:
    """Only where it is asked for; at full size and on a developer's machine every one runs."""
    (tmp_path / "test_planted.py").write_text(TURN_TESTS)
    assert "10 passed" in run_pytest(tmp_path)
    assert "10 passed" in run_pytest(tmp_path, FORETUNE_TAKE_TURNS="1", FORETUNE_PROOFS="full")
    ran: list[str] = []
    for turn in map(str, range(6, 6 + NUM_TURNS)):
        shown = run_pytest(tmp_path, "-v", "-n", "2", FORETUNE_TAKE_TURNS="1", FORETUNE_PROOFS_TURN=turn)
        assert f"again with FORETUNE_PROOFS_TURN={turn}" in shown
        assert "test_always" in shown
        ran += [f"{number}" for number in range(9) if f"test_number[{number}]" in shown]
    assert sorted(ran) == [f"{number}" for number in range(9)], "each in one turn"
