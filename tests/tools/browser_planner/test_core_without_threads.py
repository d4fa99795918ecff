"""A plan takes nothing that a browser's Python lacks: it runs here from the served files alone, with that forbidden."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import foretune as ft
from tools.browser_planner.answering import numbers
from tools.browser_planner.packing import UNUSED_LIBRARY, stage_ours

# What `importlib.util.find_spec` does not find in Pyodide 314.0.7, of `sys.stdlib_module_names`.
LACKING = (
    "_curses", "_dbm", "_gdbm", "_hashlib", "_multiprocessing", "_posixshmem", "_tkinter", "_uuid", "curses", "dbm",
    "ensurepip", "grp", "idlelib", "pwd", "readline", "resource", "syslog", "tkinter", "turtle", "venv",
)  # fmt: skip
SERVED_PACKAGES = ("annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection", "yaml")
ALLOWED_TO_SKIP = ("_curses", "pwd", "grp", "_hashlib", "_uuid")
"""The standard library itself does without them."""

PROGRAM = """
import json, sys
served, forbidden, question = sys.argv[1], set(sys.argv[2].split(",")), json.loads(sys.argv[3])
refused = []

# In place of all finders: what is not served is not found, as in a browser.
class Served:
    def __init__(self, finders):
        self.finders = finders

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        is_served = top in sys.argv[4].split(",") or top in sys.stdlib_module_names or top in ("foretune", "tools")
        # How this Python was built is read from a file whose name says it.
        if top in forbidden or not (is_served or top.startswith("_sysconfigdata")):
            refused.append(name)
            return None
        found = (finder.find_spec(name, path, target) for finder in self.finders)
        return next((spec for spec in found if spec is not None), None)

for name in forbidden:
    sys.modules.pop(name, None)
sys.meta_path[:] = [Served(list(sys.meta_path))]
sys.path.insert(0, served)

import _thread, os, signal, socket, subprocess, threading

def never(*arguments, **options):
    raise RuntimeError("a browser's Python cannot do this")

threading.Thread.start = _thread.start_new_thread = never
subprocess.Popen.__init__ = socket.socket.connect = socket.socket.bind = never
os.fork = os.system = os.posix_spawn = signal.setitimer = signal.alarm = never
import fcntl
fcntl.flock = fcntl.lockf = never

import foretune
assert foretune.__file__.startswith(served), foretune.__file__
from tools.browser_planner.answering import answer
print(json.dumps([answer(question), refused]))
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page serves of Foretune, with the traces of the model that is asked about."""
    folder = tmp_path_factory.mktemp("served")
    stage_ours(folder, models=("sd1.5-unet",))
    return folder


def test_a_plan_needs_no_more_than_is_served(served: Path, tmp_path: Path) -> None:
    question = {"model": "sd1.5-unet", "method": "full", "on": "rtx-3060"}
    forbidden = ",".join((*LACKING, *UNUSED_LIBRARY))
    words = (str(served), forbidden, json.dumps(question), ",".join(SERVED_PACKAGES))
    ended = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found, refused = json.loads(ended.stdout)
    assert "problems" not in found, found
    assert {name for name in refused if name.partition(".")[0] in LACKING} <= set(ALLOWED_TO_SKIP)
    (plan,) = ft.plan("sd1.5-unet", {"method.kind": "full"}, on="rtx-3060")
    assert found["numbers"] == json.loads(json.dumps(numbers(plan)))
