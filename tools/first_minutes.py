"""Follows docs/start.md from an empty environment and records how long it took: `python -m tools.first_minutes`.

The commands are those of the page, in its order: the wheel of this source tree instead of the released package is all
that differs. Packages come from the package index, so installing needs a network and takes what that takes.
"""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foretune.core.units import duration_text

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "start.md"
README = ROOT / "README.md"
RECORD = ROOT / "docs" / "data" / "first_minutes.json"
_BASH = shutil.which("bash") or "/bin/bash"
_BLOCK = re.compile(r"^```(bash|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PART = re.compile(r"(<!-- figures: trial -->\n).*?(<!-- end -->)", re.DOTALL)
FIRSTS = ("first plan", "first training step", "first report")


def commands(page: str) -> list[str]:
    """The lines that a reader types, without remarks."""
    return [
        line.split("  #")[0].strip()
        for _, body in _BLOCK.findall(page)
        for line in body.splitlines()
        if line.startswith(("pip ", "foretune "))
    ]


def trial(folder: Path, wheel: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Types every command; seconds since the first one, of the clock and of processors."""
    began, began_epoch, began_cpu = time.monotonic(), time.time(), _processor_s()
    installed_s = 0.0
    firsts: dict[str, tuple[float, float, float | None]] = {}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FORETUNE", "VIRTUAL"))},
        "PATH": f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    for command in commands(PAGE.read_text(encoding="utf-8")):
        step_began = time.monotonic()
        line = re.sub(r"'?foretune(\[\w+\])?'?$", rf"'{wheel}\1'", command) if command.startswith("pip ") else command
        subprocess.run([_BASH, "-euc", line], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        now = time.monotonic()
        say(f"{now - began:7.1f} s  {command}")
        if command.startswith("pip "):
            installed_s += now - step_began
        if command.startswith("foretune plan"):
            firsts["first plan"] = (now - began, installed_s, _processor_s() - began_cpu)
        elif command.startswith("foretune train"):
            firsts["first training step"] = (_first_step(folder) - began_epoch, installed_s, None)
        elif command.startswith("foretune report"):
            firsts["first report"] = (now - began, installed_s, _processor_s() - began_cpu)
    names = ("after_s", "of_which_installing_s", "processor_s")
    return {first: dict(zip(names, firsts[first], strict=True)) for first in FIRSTS}


def _first_step(folder: Path) -> float:
    """When the first optimizer step was over, in seconds of the epoch."""
    (log,) = folder.glob("runs/*/latest/events.jsonl")
    events = (json.loads(line) for line in log.read_text(encoding="utf-8").splitlines())
    return float(next(event["time_s"] for event in events if event["kind"] == "step"))


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def record() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return stored


def written(page: str, figures: dict[str, Any], *, brief: bool) -> str:
    """The page with what was measured: a table, or one sentence."""
    made = "\n".join(_sentence(figures) if brief else _table(figures))
    return _PART.sub(lambda found: f"{found[1]}{made}\n{found[2]}", page)


def _table(figures: dict[str, Any]) -> Iterator[str]:
    yield "| from an empty folder to the | after | of which installing |"
    yield "|---|---|---|"
    for first in FIRSTS:
        some = figures[first]
        yield f"| {first} | {duration_text(some['after_s'])} | {duration_text(some['of_which_installing_s'])} |"
    yield ""
    yield f"One trial on {figures['date']}: two CPU cores, {figures['beside']}, with the packages from a nearby index."


def _sentence(figures: dict[str, Any]) -> Iterator[str]:
    times = []
    for first in FIRSTS:
        some = figures[first]
        times.append(duration_text(some["after_s"]))
    yield f"From an empty environment on two CPU cores, {figures['beside']}: first plan after {times[0]}, first"
    yield f"training step after {times[1]}, first report after {times[2]}, installing included"
    yield "([how](docs/start.md#how-long-it-takes))."


def main() -> int:
    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT], check=True
        )
        (wheel,) = folder.glob("*.whl")
        figures = trial(folder, wheel, say)
    figures["date"] = f"{datetime.now(UTC):%-d %B %Y}"
    busy = max(load, os.getloadavg()[0])
    figures["beside"] = (
        f"beside other work (load {busy:.0f})" if busy > len(os.sched_getaffinity(0)) else "idle otherwise"
    )
    RECORD.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for path in (PAGE, README):
        path.write_text(written(path.read_text(encoding="utf-8"), figures, brief=path == README), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
