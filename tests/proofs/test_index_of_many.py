"""A hundred thousand stored runs are filtered and grouped without opening one of them again.

The runs are copies of real trainings with other settings and figures, so that every answer is known. What is asserted
is counted, or is the processor's time beside that of reading the same runs; seconds are printed.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import foretune
from foretune.analyse.run_index.indexing import refreshed
from foretune.analyse.run_index.selecting import Selection, select_runs
from foretune.analyse.run_index.store import FILE_NAME
from foretune.analyse.run_index.summarising import summarise
from tests.analyse.many_runs import facts, write_many
from tests.conftest import ProofSize
from tests.work_counts import files_opened, work_of

pytestmark = pytest.mark.proof

_LEAST_TIMES_FASTER = 15
"""An answer from the index, beside reading all runs."""
_MOST_FILES_OF_A_RUN = 5
_MOST_CALLS_OF_A_RUN = 60
_MOST_BYTES_OF_A_RUN = 4000


def trained(folder: Path, model: Path, method: dict[str, object]) -> Path:
    """A real run of a few steps."""
    data = {"kind": "shapes", "num_samples": 8, "resolution": 32, "cache_dir": str(folder / "cache")}
    experiment = {"model": str(model), "method": method, "data": data, "train": {"steps": 4, "batch_size": 1}}
    return foretune.train(experiment, runs=folder / "trained").path


def test_very_many_runs_are_filtered_without_opening_them(
    tmp_path: Path,
    tiny_pipeline: Callable[..., Path],
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    num = proof_size(100_000, 10_000)
    model, runs = tiny_pipeline("ddpm"), tmp_path / "runs"
    sources = [trained(tmp_path, model, {"kind": "lora", "rank": 4}), trained(tmp_path, model, {"kind": "full"})]
    write_many(runs, sources, num)
    for folder in runs.iterdir():
        # Written a moment ago, files would be looked at again.
        for path in (*folder.glob("*/experiment.yaml"), *folder.glob("*/record.json"), *folder.glob("*/events.jsonl")):
            os.utime(path, (1e9, 1e9))
    cold_s, cold_wall_s = _times(lambda: _built(runs, num))
    where = ("model=flux*", "status=finished", "train.batch_size>=4")
    filtered = Selection.of(where, ("run", "samples_per_s"), "samples_per_s", 20)

    def find() -> None:
        select_runs([runs], filtered)

    def group() -> None:
        summarise([runs], Selection.of())

    (filter_s, filter_wall_s), (group_s, group_wall_s) = min(_times(find), _times(find)), _times(group)
    size_bytes = (runs / FILE_NAME).stat().st_size
    report_figure(
        f"{num:,} runs: index made in {cold_s:.1f} s of one processor ({cold_wall_s:.0f} s by the clock), "
        f"{size_bytes / num:.0f} bytes a run; then a filter takes {filter_s:.2f} s ({filter_wall_s:.1f} s), "
        f"a summary {group_s:.2f} s ({group_wall_s:.1f} s)"
    )
    assert max(filter_s, group_s) < cold_s / _LEAST_TIMES_FASTER
    _require_right(runs, num, filtered)
    assert _of_runs(files_opened(find)) == []
    work = work_of(group)
    assert work.num_calls < _MOST_CALLS_OF_A_RUN * num
    assert work.peak_bytes < _MOST_BYTES_OF_A_RUN * num
    # What changed is read, and nothing else.
    for path in list(runs.glob("experiment-0000/*/record.json"))[:10]:
        os.utime(path, (1e9 + 1, 1e9 + 1))
    opened = _of_runs(files_opened(find))
    assert 10 <= len(opened) <= 10 * _MOST_FILES_OF_A_RUN


def _built(runs: Path, num: int) -> None:
    with refreshed(runs) as index:
        assert (index.num_runs, index.num_read) == (num, num)


def _require_right(runs: Path, num: int, filtered: Selection) -> None:
    """Against what was written."""
    written = [facts(number, num) for number in range(num)]
    wanted = [
        (one["run"], one["samples_per_s"])
        for one in written
        if one["model"] == "flux.1-dev" and one["status"] == "finished" and one["batch_size"] >= 4
    ]
    wanted.sort(key=lambda row: -row[1])
    table = select_runs([runs], filtered)
    assert (table.num_selected, table.num_read) == (len(wanted), 0)
    assert list(table.rows) == wanted[:20]
    groups = summarise([runs], Selection.of(), ("model", "method.kind")).groups
    statuses: Counter[str] = Counter()
    for group in groups:
        statuses.update(group.num_by_status)
    assert statuses == Counter(one["status"] or "no record" for one in written)
    flux = [one["samples_per_s"] for one in written if one["model"] == "flux.1-dev" and one["status"] == "finished"]
    assert max(group.speed.best or 0 for group in groups if group.key[0] == "flux.1-dev") == max(flux)


def _of_runs(names: list[str]) -> list[str]:
    return [name for name in names if name.endswith((".json", ".jsonl", ".yaml"))]


def _times(do: Callable[[], None]) -> tuple[float, float]:
    """Of the processor, and by the clock."""
    began_s, began_wall_s = time.process_time(), time.perf_counter()
    do()
    return time.process_time() - began_s, time.perf_counter() - began_wall_s
