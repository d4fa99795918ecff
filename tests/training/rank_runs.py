"""Starts the processes of a run as a launcher does: one with each rank, which find each other through a file."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.waiting import HANG_S

_ROOT = Path(__file__).parents[2]
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "FORETUNE_STORE")


def run_ranks(
    python: Path, size: int, do: str, *, program: str = "tests.training.rank_program", **request: Any
) -> list[Any]:
    """What each of `size` processes says. With one, no launcher is there."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "request.json"
        path.write_text(json.dumps({"do": do, **request}))
        started = [_started(python, program, path, rank, size) for rank in range(size)]
        ends = [process.communicate(timeout=HANG_S) for process in started]
    for process, (_, errors) in zip(started, ends, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(out.splitlines()[-1]) for out, _ in ends]


def _started(python: Path, program: str, request: Path, rank: int, size: int) -> "subprocess.Popen[str]":
    store = str(request.with_name("store"))
    values = (str(rank), str(size), str(rank), str(size), store)
    variables = dict(zip(RANK_VARIABLES, values, strict=True)) if size > 1 else {}
    return subprocess.Popen(
        [python, "-m", program, str(request)],
        env={**os.environ, **variables, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(_ROOT / "src")},
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
