"""A script without a main guard is told so by the first process that imports it again."""

import subprocess
import sys
from pathlib import Path

UNGUARDED = """
import multiprocessing

import foretune as ft


def nothing():
    pass


if multiprocessing.current_process().name == "MainProcess":
    loader = multiprocessing.get_context("spawn").Process(target=nothing)
    loader.start()
    loader.join()
    print("loader ended with", loader.exitcode)
else:
    ft.ACTION("experiment.yaml")
"""


def test_a_script_without_a_guard_is_refused_where_it_is_imported_again(tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text("model: flux.1-dev")
    script = tmp_path / "script.py"
    for action in ("train", "resume"):
        script.write_text(UNGUARDED.replace("ACTION", action))
        ran = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert ran.stdout == "loader ended with 1\n"
        assert 'Put what the script runs below `if __name__ == "__main__":`, or set data.num_workers=0' in ran.stderr
        assert {path.name for path in tmp_path.iterdir()} == {"script.py", "experiment.yaml"}
