"""The alarm speaks when a run becomes slower, names the likely cause, once; healthy runs raise none."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from foretune.training.drift_alarm import Alarm, DriftAlarm
from tests.training.planted_steps import Step, healthy, report, steps

Series = Sequence[Step]


def alarms(series: Series, sensors: Callable[[int], dict[str, Any]] | None = None) -> list[Alarm]:
    """Hears a series; `sensors` says what they tell at each step, one reading a step."""
    reported: list[Alarm] = []
    readings: list[tuple[float, dict[str, Any]]] = []
    alarm = DriftAlarm(reported.append, lambda: readings[-120:])
    now_s = 0.0
    for step, phases_s in enumerate(series):
        now_s += sum(phases_s.values())
        if sensors is not None:
            readings.append((now_s, sensors(step)))
        alarm.stepped(report(step, phases_s))
    return reported


def test_20_healthy_series_raise_none() -> None:
    assert {seed: alarms(healthy(seed)) for seed in range(20) if alarms(healthy(seed))} == {}


def test_50_quiet_long_series_raise_none() -> None:
    """An alarm is looked for a hundred times in each."""
    assert [seed for seed in range(50) if alarms(steps(1000, lambda _: 1.0, seed, noise=0.1))] == []


def slower_from(step: int, factor: float) -> Callable[[int], float]:
    return lambda at: factor if at >= step else 1.0


@pytest.mark.parametrize("seed", range(5))
def test_waiting_for_data_is_named(seed: int) -> None:
    series = steps(300, lambda _: 1.0, seed)
    for at, phases_s in enumerate(series):
        if at >= 150:
            phases_s["data"] = 0.6
    (alarm,) = alarms(series)
    assert alarm.cause == "input wait"
    assert 150 < alarm.step < 200
    assert "raise data.num_workers" in alarm.text
    assert "longer than at the start" in alarm.text


def test_a_throttled_device_is_named() -> None:
    def sensors(step: int) -> dict[str, Any]:
        hot = step >= 150
        reasons = ["heat (hardware)"] if hot else []
        reported = {"throttling": reasons, "clock_hz": 1.2e9 if hot else 1.8e9, "temperature_c": 89 if hot else 60}
        return {"nvidia:0": reported, "host": {"other_cpus": 0.2}}

    (alarm,) = alarms(steps(300, slower_from(150, 1.4), 0), sensors)
    assert alarm.cause == "throttled"
    assert "heat (hardware)" in alarm.text
    assert "89 °C" in alarm.text


def test_a_clock_that_fell_is_named_without_a_reason() -> None:
    clocks = lambda step: {"host": {"clock_hz": 2.1e9 if step >= 150 else 3.5e9}}  # noqa: E731
    (alarm,) = alarms(steps(300, slower_from(150, 1.5), 0), clocks)
    assert alarm.cause == "throttled"
    assert "the processor's clock fell from 3500 to 2100 MHz" in alarm.text


def test_swap_is_named() -> None:
    sensors = lambda step: {"host": {"swapped_bytes": max(0, step - 150) * 5_000_000}}  # noqa: E731
    (alarm,) = alarms(steps(300, slower_from(150, 1.5), 0), sensors)
    assert alarm.cause == "swap"


def test_a_quota_is_named() -> None:
    sensors = lambda step: {"host": {"quota_throttled_s": max(0, step - 150) * 0.4}}  # noqa: E731
    (alarm,) = alarms(steps(300, slower_from(150, 1.5), 0), sensors)
    assert alarm.cause == "processor quota"


@pytest.mark.parametrize(("process_cpus", "advises_threads"), [(1.0, False), (3.7, True)])
def test_other_programs_are_named(process_cpus: float, advises_threads: bool) -> None:
    """Fewer threads help only a run that has several."""

    def sensors(step: int) -> dict[str, dict[str, float]]:
        return {"host": {"other_cpus": 3.0 if step >= 150 else 0.1, "process_cpus": process_cpus}}

    (alarm,) = alarms(steps(300, slower_from(150, 1.5), 0), sensors)
    assert alarm.cause == "other load"
    assert "keep 3.0 processors busy, before 0.1" in alarm.text
    assert ("parallel.threads" in alarm.text) == advises_threads


def test_without_sensors_the_phase_is_named() -> None:
    (alarm,) = alarms(steps(300, slower_from(150, 1.5), 0))
    assert alarm.cause == "phase backward"
    assert "no sensor shows why" in alarm.text


def test_each_cause_once() -> None:
    series = steps(500, slower_from(150, 1.5), 0)
    for phases_s in series[300:]:
        phases_s["data"] = 2.0
    assert [alarm.cause for alarm in alarms(series)] == ["phase backward", "input wait"]


def test_a_run_that_becomes_faster_raises_none() -> None:
    assert alarms(steps(300, slower_from(150, 0.6), 0)) == []


def test_a_busy_moment_raises_none() -> None:
    busy = lambda at: 3.0 if 150 <= at < 165 else 1.0  # noqa: E731
    assert alarms(steps(300, busy, 0)) == []
