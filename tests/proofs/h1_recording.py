"""Records trainings in fresh processes for the proofs of comparing: python -m tests.proofs.h1_recording

Half of the runs have the machine to themselves, as far as it is free; the others run beside processes that take the
cores. The two conditions take turns. What is recorded is kept after every run, so that a recording can be broken off
and gone on with. A run is a process forked from one that has imported everything and computed nothing; with --bench it
is one of `foretune bench`, which takes ten seconds of imports for a second of training.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from foretune.analyse.run_data import read_run
from foretune.config.reading import Asked
from foretune.measure.bench import measure_once
from foretune.models.tiny import write_tiny_pipeline
from foretune.stats.turns import Side, turns
from tests.proofs.h1_runs import RUNS, Condition
from tests.step.small_steps import made_batch, small_step
from tests.training.short_runs import short_asked

NUM_HOGS = 2
NUM_STEPS = 40
_LR = 1e-4


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """Processes that compute and rest in turns for as long as the context lasts, as neighbours do."""
    code = (
        "import random, time\n"
        "while True:\n"
        "    end = time.monotonic() + random.uniform(0.05, 1.5)\n"
        "    while time.monotonic() < end: sum(range(1000))\n"
        "    time.sleep(random.uniform(0.05, 1.0))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _small_training(work: Path) -> Asked:
    return short_asked(_tiny_flux(work), work, optimizer={"lr": _LR})


def _tiny_flux(work: Path) -> Path:
    model = work / "tiny-flux"
    return model if model.is_dir() else write_tiny_pipeline("flux", model)


def _in_a_fork(work: Path, do: Callable[[], Any]) -> Any:
    """What a copy of this process answers."""
    answer = work / "answer.json"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            answer.write_text(json.dumps(do()), encoding="utf-8")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return json.loads(answer.read_text(encoding="utf-8"))


def _trained_times(model: Path) -> list[float]:
    torch.set_num_threads(1)
    small = small_step(model, "lora")
    times, last_s = [], time.perf_counter()
    for step in range(NUM_STEPS):
        small.step(step, _LR, [made_batch(small.family, 2, seed=step)], 1)
        now_s = time.perf_counter()
        times.append(now_s - last_s)
        last_s = now_s
    return times


def measurement(work: Path, *, through_bench: bool) -> Callable[[], list[float]]:
    """What measures the step times of one fresh process."""
    model = work / "tiny-flux"
    if not through_bench:
        _in_a_fork(work, lambda: str(_tiny_flux(work)))
        return lambda: list(_in_a_fork(work, lambda: _trained_times(model)))
    asked = _small_training(work)
    measure_once(asked, work, num_steps=1)  # fills the cache
    return lambda: list(read_run(measure_once(asked, work, num_steps=NUM_STEPS)).step_times_s)


def record(num_each: int, path: Path, *, through_bench: bool) -> None:
    """Records until there are `num_each` runs of each condition."""
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    with tempfile.TemporaryDirectory(prefix="foretune-h1-") as folder:
        measure = measurement(Path(folder), through_bench=through_bench)
        while True:
            counts = Counter(run["condition"] for run in runs)
            condition: Condition = "quiet" if counts["quiet"] <= counts["beside hogs"] else "beside hogs"
            if counts[condition] >= num_each:
                return
            with hogs(NUM_HOGS if condition == "beside hogs" else 0):
                times = measure()
            runs.append({"condition": condition, "step_times_s": [round(time_s, 6) for time_s in times]})
            path.parent.mkdir(exist_ok=True)
            lines = ",\n".join(json.dumps(run) for run in runs)
            path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
            print(f"{len(runs)} runs", flush=True)


def compare_live(num_comparisons: int, num_repeats: int) -> Iterator[dict[Side, list[list[float]]]]:
    """Step times of a thing measured against itself, in turns: for each side a series of each of its processes."""
    with tempfile.TemporaryDirectory(prefix="foretune-h1-") as folder:
        measure = measurement(Path(folder), through_bench=False)
        for _ in range(num_comparisons):
            sides: dict[Side, list[list[float]]] = {"a": [], "b": []}
            for side in turns(num_repeats):
                sides[side].append(measure())
            yield sides


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=30, help="Runs of each condition.")
    parser.add_argument("--output", type=Path, default=RUNS)
    parser.add_argument("--bench", action="store_true", help="Measure through `foretune bench`.")
    parser.add_argument(
        "--live", type=int, help="Compare so many times, ten processes a side; print what was measured."
    )
    arguments = parser.parse_args()
    if arguments.live is None:
        record(arguments.each, arguments.output, through_bench=arguments.bench)
    else:
        for compared in compare_live(arguments.live, num_repeats=10):
            print(json.dumps(compared), flush=True)
