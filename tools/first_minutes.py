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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
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
    firsts: dict[str, tuple[float, float, float]] = {}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FORETUNE", "VIRTUAL"))},
        "PATH": f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    for command in commands(PAGE.read_text(encoding="utf-8")):
        step_began = time.monotonic()
        line = re.sub(r"'?foretune(\[\w+\])?'?$", rf"'{wheel}\1'", command) if command.startswith("pip ") else command
        before_s = _processor_s() - began_cpu
        at_first_step = _typed(line, folder, environment)
        now = time.monotonic()
        say(f"{now - began:7.1f} s  {command}")
        if command.startswith("pip "):
            installed_s += now - step_began
        if command.startswith("foretune plan"):
            firsts["first plan"] = (now - began, installed_s, _processor_s() - began_cpu)
        elif command.startswith("foretune train"):
            assert at_first_step is not None, "the log has a step"
            firsts["first training step"] = (at_first_step[0] - began_epoch, installed_s, before_s + at_first_step[1])
        elif command.startswith("foretune report"):
            firsts["first report"] = (now - began, installed_s, _processor_s() - began_cpu)
    names = ("after_s", "of_which_installing_s", "processor_s")
    return {first: dict(zip(names, firsts[first], strict=True)) for first in FIRSTS}


def _typed(line: str, folder: Path, environment: Mapping[str, str]) -> tuple[float, float] | None:
    """Runs a line to its end; if it trains, when its first step was over, and the seconds of processors until then."""
    process = subprocess.Popen([_BASH, "-euc", f"exec {line}"], cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    seen: tuple[float, float] | None = None
    while process.poll() is None:
        time.sleep(0.1)
        if seen is None and (step_s := _first_step(folder)) is not None:
            with suppress(FileNotFoundError):
                seen = step_s, _processor_s_of(process.pid)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, line)
    return seen


def _first_step(folder: Path) -> float | None:
    """When the first optimizer step was over, in seconds of the epoch."""
    for log in folder.glob("runs/*/latest/events.jsonl"):
        for line in log.read_text(encoding="utf-8").splitlines(keepends=True):
            event = json.loads(line) if line.endswith("\n") else {}
            if event.get("kind") == "step":
                return float(event["time_s"])
    return None


def _processor_s_of(pid: int) -> float:
    """Of a process that is still running, by Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def record() -> dict[str, Any] | None:
    """The last trial; None if none was recorded."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else None


def written(page: str, figures: dict[str, Any] | None, *, brief: bool) -> str:
    """The page with what was measured: a table, or one sentence. Without a trial there is nothing to say."""
    lines = [] if figures is None else [*(_sentence(figures) if brief else _table(figures)), ""]
    return _PART.sub(lambda found: f"{found[1]}{chr(10).join(lines)}{found[2]}", page)


def _table(figures: dict[str, Any]) -> Iterator[str]:
    yield "| from an empty folder to the | processor time | clock | of which installing |"
    yield "|---|---|---|---|"
    for first in FIRSTS:
        some = figures[first]
        times = (some["processor_s"], some["after_s"], some["of_which_installing_s"])
        yield f"| {first} | {' | '.join(duration_text(one) for one in times)} |"
    yield ""
    yield f"One trial on {figures['date']}: two CPU cores, {figures['beside']}. The clock includes downloads from a"
    yield "near package index. `python -m tools.first_minutes` repeats it."


def _sentence(figures: dict[str, Any]) -> Iterator[str]:
    plan, report = (duration_text(figures[first]["processor_s"]) for first in (FIRSTS[0], FIRSTS[-1]))
    yield f"From an empty environment on two CPU cores, the first plan takes {plan} of processor time and the first"
    yield f"report of a training {report}, installing included ([measured](docs/start.md#how-long-it-takes))."


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
