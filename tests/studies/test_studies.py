"""Studies: each asks what it says, answers in words, and is something that can be drawn."""

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest

from foretune.core.observer import Observer
from foretune.measure.bench_summary import Series, summary_of
from foretune.stats.intervals import typical
from foretune.studies.named import STUDIES, operators, workers
from foretune.studies.named.base import StudyRequest, StudyResult, StudyValue, as_fast
from foretune.studies.studying import run_study
from tests.measure.test_bench import repeat_of

_MODULES = {
    "batch-size": "batch_size",
    "workers": "workers",
    "precision": "precision",
    "compile": "compiling",
    "methods": "methods",
}
_PLANTED = {
    "batch-size": {1: 0.1, 4: 0.2},
    "workers": {0: 0.4, 1: 0.1},
    "precision": {0: 0.3, 1: 0.15},
    "compile": {0: 0.2, 1: 0.1},
    "methods": {0: 0.4, 1: 0.2},
}
_WORDS = {
    "batch-size": "batch 4 against batch 1: 2.00 times as many samples/s",
    "workers": "75% of the step goes to data; fastest of the others, workers 1, against workers 0: 4.00 times as fast",
    "precision": "2.00 times as fast",
    "compile": "after 100 steps",
    "methods": "LoRA 16 against full: 2.00 times as fast (2.00 to 2.00); full takes 100 MiB more",
}


def planted(name: str, settings: dict[str, dict[str, Any]]) -> dict[str, Series]:
    """A series for each setting with a known step time."""
    series = {}
    for number, (label, step_s) in enumerate(zip(settings, _PLANTED[name].values(), strict=True)):
        start = [10.0 + step_s] if name == "compile" and number == 1 else [step_s]
        batch = settings[label]["train"]["batch_size"]
        phases = {"data": step_s - 0.1, "forward": 0.1}
        repeat = repeat_of(
            *start, *[step_s] * 19, batch=batch, phases_s=phases, peak_host_bytes=(200 - 100 * number) * 2**20
        )
        series[label] = summary_of([repeat] * 3, None)
    return series


@pytest.mark.parametrize("name", list(_MODULES))
def test_a_study_finds_what_was_planted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"foretune.studies.named.{_MODULES[name]}")
    monkeypatch.setattr(module, "measure_in_turns", lambda request, settings, **_: planted(name, settings))
    path, result = run_study(STUDIES[name], tmp_path, model=Path("m"), is_quick=True, observer=Observer())
    assert _WORDS[name] in " ".join(result.findings)
    assert (path / "study.json").is_file()
    assert_drawable(result)


def test_a_ratio_is_claimed_only_where_it_was_shown() -> None:
    def series(*steps_s: float) -> Series:
        return summary_of([repeat_of(*[step_s] * 20) for step_s in steps_s], None)

    assert as_fast(series(0.2, 0.21, 0.2), series(0.1, 0.105, 0.1)).startswith("2.00 times as fast (")
    assert as_fast(series(0.2, 0.9, 0.3), series(0.3, 0.5, 0.2)).startswith("not decided")
    assert as_fast(series(0.2, 0.2001, 0.2), series(0.2, 0.2, 0.2001)).startswith("no difference shown")


def test_runs_that_never_come_to_rest_have_no_ratio() -> None:
    rising = summary_of([repeat_of(*[0.1 * (1 + 0.02 * step) for step in range(60)])] * 3, None)
    assert as_fast(rising, summary_of([repeat_of(*[0.1] * 20)] * 3, None)).startswith("not decided: most of its runs")


def test_the_fastest_loader_is_one_that_came_to_rest_and_waiting_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers 1 drift, workers 2 deliver in bursts, which a median does not see; workers 3 are the fastest."""
    steps_s = ([0.4] * 40, [0.05 * (1 + 0.02 * step) for step in range(60)], [0.1, 0.1, 0.1, 0.9] * 10, [0.2] * 40)
    series = {
        f"workers {count}": summary_of([repeat_of(*times_s, phases_s={"data": 0.1, "forward": 0.1})] * 3, None)
        for count, times_s in enumerate(steps_s)
    }
    monkeypatch.setattr(workers, "_counts", lambda is_quick: tuple(range(4)))
    monkeypatch.setattr(workers, "measure_in_turns", lambda request, settings, **_: series)
    _, result = run_study(STUDIES["workers"], tmp_path, model=Path("m"), is_quick=True, observer=Observer())
    assert "fastest of the others, workers 3, against workers 0: 2.00 times as fast" in result.findings[0]
    assert [point.values["step_ms"].value for point in result.points] == pytest.approx([400, None, 300, 200])


def test_the_longest_operators_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"name": f"op{n}", "count": 3 * n, "self_s": n / 10} for n in range(1, 13)]
    answer = {"operators": rows, "total_s": sum(n / 10 for n in range(1, 13))}
    monkeypatch.setattr(operators, "ask_fresh_process", lambda request, observer: answer)
    monkeypatch.setattr(
        operators, "understand", lambda mapping, source: dataclasses.make_dataclass("A", ["as_asked"])(mapping)
    )
    result = STUDIES["operators"].run(StudyRequest(directory=tmp_path, model=Path("m"), is_quick=True))
    assert [point.label for point in result.points] == [f"op{n}" for n in range(12, 2, -1)]
    assert "op12 takes 15%" in result.findings[0]
    assert_drawable(result)


def assert_drawable(result: StudyResult) -> None:
    for point in result.points:
        assert {axis.key for axis in result.axes} <= set(point.values)
        assert point.x is not None or not result.is_line


def test_full_size_asks_what_the_study_promises() -> None:
    """Loader processes from 0 to 8; three ranks."""
    from foretune.studies.named.methods import _methods
    from foretune.studies.named.workers import _counts

    assert _counts(False) == tuple(range(9))
    assert list(_methods(False)) == ["full", "LoRA 4", "LoRA 16", "LoRA 64"]
    for study in STUDIES.values():
        assert 0 < study.num_processes(True) <= study.num_processes(False)


def test_a_time_in_another_unit_keeps_its_interval_above_zero() -> None:
    value = StudyValue.of(typical([[0.1] * 20, [0.5] * 20]), 1000)
    assert value.value == pytest.approx(300)
    assert value.low == 0.0
    rate = StudyValue.rate(typical([[0.5] * 20, [0.5] * 20]), 4)
    assert rate.value == pytest.approx(8)
