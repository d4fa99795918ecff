"""H19: plants one bug after the other in a copy of the project and shows that a test notices each of them.

    python -m tests.mutants.plant                     all of them, about a quarter of an hour on two idle cores
    python -m tests.mutants.plant checkpoint order    those with one of these words in their name

Each bug of `bugs_of_*.py` is planted alone, and the tests that it names are run until the first one fails. that they pass is a survivor: the exit status is 1, and a test is missing. First all of these tests must pass without
a bug, or nothing is shown.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.bug import Bug
from tests.mutants.bugs import BUGS

ROOT = Path(__file__).parents[2]
_PARTS = ("src", "tests", "docs", "examples", "benchmarks", "pyproject.toml", "README.md", "CHANGELOG.md")
_PASSED, _FAILED = 0, 1
_LIMIT_S = 1800.0


def main(words: Sequence[str]) -> int:
    bugs = [bug for bug in BUGS if not words or any(word in bug.name for word in words)]
    if not bugs:
        print(f"No bug has {' or '.join(words)} in its name. There are: {'; '.join(bug.name for bug in BUGS)}")
        return 2
    with tempfile.TemporaryDirectory(prefix="foretune-mutants-") as folder:
        copy = Path(folder)
        _copy_project(copy)
        tests = sorted({test for bug in bugs for test in bug.tests})
        began_s = time.monotonic()
        status, output = _run(copy, tests)
        if status != _PASSED:
            print(f"{output}\nThese tests fail without any bug, so that they show nothing.")
            return 2
        print(
            f"{len(tests)} tests or files of tests pass without a bug: {time.monotonic() - began_s:.0f} s", flush=True
        )
        survivors = [bug for number, bug in enumerate(bugs, start=1) if not _is_killed(copy, bug, number, len(bugs))]
    print(f"{len(bugs) - len(survivors)} of {len(bugs)} planted bugs were noticed; survivors: {len(survivors)}")
    for bug in survivors:
        print(f"  {bug.file}: {bug.name}; passed by {', '.join(bug.tests)}")
    return 1 if survivors else 0


def _copy_project(copy: Path) -> None:
    leave_out = shutil.ignore_patterns("__pycache__")
    for name in _PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=leave_out)
        else:
            shutil.copy2(ROOT / name, copy / name)


def _is_killed(copy: Path, bug: Bug, number: int, num_bugs: int) -> bool:
    path, began_s = copy / bug.file, time.monotonic()
    whole = path.read_text(encoding="utf-8")
    assert whole.count(bug.old) == 1, f"{bug.file} has {bug.old!r} {whole.count(bug.old)} times"
    try:
        path.write_text(whole.replace(bug.old, bug.new), encoding="utf-8")
        status, output = _run(copy, bug.tests)
    finally:
        path.write_text(whole, encoding="utf-8")
    is_killed = status == _FAILED
    word = "noticed" if is_killed else "SURVIVES" if status == _PASSED else f"the tests ended with status {status}"
    print(f"{number:3d}/{num_bugs} {bug.name}: {word}, {time.monotonic() - began_s:.0f} s", flush=True)
    if status not in (_PASSED, _FAILED):
        print(output)
    return is_killed


def _run(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Bytecode is not written: a file that changes twice in a second would be taken for what it was before."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "PYTHONPATH": str(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
