"""A run far below its plan is reported once, with the likely cause; runs at plan are not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from foretune.core.values.plan_time import StepTime
from foretune.training.plan_alarm import LOOKS, MARGIN, PlanAlarm, SlowerThanPlanned
from tests.training.planted_steps import Step, healthy, report, steps

Sensors = Callable[[int], Mapping[str, Mapping[str, Any]]]
HIGH_S = 1.4


def planned(step_s: float = 1.0, evidence: str = "measured here") -> StepTime:
    """A step of a second, or between 0.75 s and 1.4 s."""
    return StepTime.model_validate(
        {
            "step_s": step_s,
            "low_s": 0.75 * step_s,
            "high_s": HIGH_S * step_s,
            "shares": {"compute": 1.0},
            "bound_by": "compute",
            "evidence": evidence,
            "samples_per_s": 4 / step_s,
            "model_flops": 1e9,
            "hardware_flops": 1e9,
            "model_utilisation": None,
            "hardware_utilisation": None,
        }
    )


def alarms(
    series: Sequence[Step],
    sensors: Sensors | None = None,
    plan: StepTime | None = None,
    reserved_share: float | None = None,
    **changes: Any,
) -> list[SlowerThanPlanned]:
    """Hears a series; `sensors` says what they report at each step. Its time is virtual."""
    found: list[SlowerThanPlanned] = []
    readings: list[tuple[float, Mapping[str, Mapping[str, Any]]]] = []
    alarm = PlanAlarm(plan or planned(), found.append, lambda: readings[-120:], reserved_share=lambda: reserved_share)
    now_s = 0.0
    for step, phases_s in enumerate(series):
        now_s += sum(phases_s.values())
        if sensors is not None:
            readings.append((now_s, sensors(step)))
        alarm.stepped(replace(report(step, phases_s), **changes))
    return found


def slow(factor: float) -> Callable[[int], float]:
    return lambda _: factor


def test_50_runs_at_plan_raise_none() -> None:
    assert [seed for seed in range(50) if alarms(healthy(seed))] == []


@pytest.mark.parametrize("factor", [1.2, 1.35, 1.45])
def test_50_runs_within_the_band_or_its_margin_raise_none(factor: float) -> None:
    """Slower than the likely time, and not far below what the plan says is possible."""
    assert factor < MARGIN * HIGH_S
    assert [seed for seed in range(50) if alarms(steps(400, slow(factor), seed, noise=0.1))] == []


def test_spikes_raise_none() -> None:
    """Every fifth step takes ten times as long: the mean is far below plan, the steps are not."""
    series = steps(400, lambda at: 10.0 if at % 5 == 4 else 1.0, 0)
    assert alarms(series) == []


def test_a_long_warm_up_raises_none() -> None:
    assert alarms(steps(400, lambda at: 4.0 if at < 15 else 1.0, 0)) == []


@pytest.mark.parametrize("seed", range(10))
def test_slow_steps_raise_one_alarm_with_both_speeds(seed: int) -> None:
    (alarm,) = alarms(steps(400, slow(2.0), seed))
    assert alarm.step < LOOKS[1]
    assert alarm.planned_samples_per_s == 4
    assert alarm.measured_samples_per_s == pytest.approx(2, rel=0.05)
    assert "samples/s instead of 4 (2.86 to 5.33)" in alarm.text
    assert alarm.cause == "unknown"
    assert "most of the time is in the phase 'backward'" in alarm.text
    assert "foretune calibrate" in alarm.text


def test_noisy_slow_steps_are_reported_when_they_are_shown() -> None:
    """By 40 % above the margin, with steps that scatter by 60 %: twenty of them show nothing yet."""
    (alarm,) = alarms(steps(400, slow(1.4 * MARGIN * HIGH_S), 3, noise=0.6))
    assert alarm.step >= LOOKS[1] - 1


def test_waiting_for_data_is_named() -> None:
    series = steps(400, slow(1.0), 0)
    for phases_s in series:
        phases_s["data"] = 1.5
    (alarm,) = alarms(series)
    assert alarm.cause == "input wait"
    assert "each step waits 1.50 s for data" in alarm.text
    assert "raise data.num_workers" in alarm.text


def test_encoding_in_the_loop_is_named() -> None:
    series = steps(400, slow(1.0), 0)
    for phases_s in series:
        phases_s["encode"] = 1.5
    (alarm,) = alarms(series)
    assert alarm.cause == "encoding"
    assert "levers.cache_text=true" in alarm.text


def test_a_busy_machine_is_named() -> None:
    (alarm,) = alarms(steps(400, slow(2.0), 0), lambda _: {"host": {"other_cpus": 3.0, "process_cpus": 1.0}})
    assert alarm.cause == "other load"
    assert "other programs keep 3.0 processors busy, planned 0.0" in alarm.text


def test_other_processes_on_the_device_are_named() -> None:
    (alarm,) = alarms(steps(400, slow(2.0), 0), lambda _: {"nvidia:0": {"num_processes": 2}})
    assert alarm.cause == "shared device"
    assert "2 processes use the device" in alarm.text


@pytest.mark.parametrize(
    ("share", "cause"), [(1.3, "paged to the host"), (0.92, "paged to the host"), (0.5, "throttled")]
)
def test_a_full_card_on_windows_is_named(share: float, cause: str) -> None:
    """A card that waits for the host's memory may report a power cap, too."""
    (alarm,) = alarms(
        steps(400, slow(2.0), 0), lambda _: {"nvidia:0": {"throttling": ["power cap"]}}, reserved_share=share
    )
    assert alarm.cause == cause
    if cause != "throttled":
        assert f"the allocator holds {share:.0%} of the card's memory" in alarm.text


def test_a_power_limit_is_named() -> None:
    (alarm,) = alarms(steps(400, slow(2.0), 0), lambda _: {"nvidia:0": {"throttling": ["power cap"]}})
    assert alarm.cause == "throttled"
    assert "power cap" in alarm.text


def test_swap_is_named() -> None:
    (alarm,) = alarms(steps(400, slow(2.0), 0), lambda at: {"host": {"swapped_bytes": at * 9_000_000}})
    assert alarm.cause == "swap"


@pytest.mark.parametrize(("num_owed", "cause"), [(0, "host-bound"), (3, "unknown")])
def test_a_host_that_is_too_slow_is_named(num_owed: int, cause: str) -> None:
    """The device has nothing to do while the host hands a step over."""
    (alarm,) = alarms(steps(400, slow(2.0), 0), host_phases_s={"forward": 1.9}, num_owed=num_owed)
    assert alarm.cause == cause


@pytest.mark.parametrize("evidence", ["kernel tables", "data sheet"])
def test_without_a_measurement_of_the_device_calibration_is_advised(evidence: str) -> None:
    (alarm,) = alarms(steps(400, slow(2.0), 0), plan=planned(evidence=evidence))
    assert "Measure this device: foretune calibrate" in alarm.text


def test_steps_under_a_profiler_do_not_count() -> None:
    found: list[SlowerThanPlanned] = []
    alarm = PlanAlarm(planned(), found.append, list, lambda step: step % 2 == 0)
    for step, phases_s in enumerate(steps(400, lambda at: 1.0 if at % 2 == 0 else 9.0, 0)):
        alarm.stepped(report(step, phases_s))
    assert found == []


def test_what_becomes_slow_later_is_left_to_the_other_alarm() -> None:
    assert alarms(steps(600, lambda at: 1.0 if at < 100 else 3.0, 0)) == []


def test_nothing_is_kept_once_there_is_an_answer() -> None:
    """A run of a million steps must not grow."""
    alarm = PlanAlarm(planned(), lambda _: None, list)
    for step, phases_s in enumerate(steps(400, slow(1.0), 0)):
        alarm.stepped(report(step, phases_s))
    assert alarm._steps == []
