"""Each diagnosis from numbers that call for it, and from numbers that do not."""

import dataclasses
from typing import Any

import pytest

from foretune.analyse.diagnosis import Evidence, diagnose
from foretune.analyse.memory_growth import find_leak
from foretune.analyse.trace_digest import Shares, TraceDigest


def steps(num: int = 60, step_s: float = 0.1, data_s: float = 0.0, **fields: Any) -> list[dict[str, Any]]:
    phases = {"data": data_s, "forward": (step_s - data_s) / 3, "backward": (step_s - data_s) * 2 / 3}
    return [{"step": number, "step_s": step_s, "phases_s": phases, **fields} for number in range(num)]


def kinds(evidence: Evidence) -> list[str]:
    return [diagnosis.kind for diagnosis in diagnose(evidence)]


def shares(**changes: float) -> TraceDigest:
    made = Shares(**{"input": 0.0, "launch": 0.0, "idle": 0.0, "copy": 0.0, **changes})
    return TraceDigest(
        device="cuda", num_steps=3, wall_s=0.3, operators=(), phases_s={}, modules=(), shares=made, memory=None,
        left_out=None,
    )  # fmt: skip


def test_input_bound_names_the_processes_that_would_do() -> None:
    evidence = Evidence(steps=steps(step_s=0.2, data_s=0.16), num_usable_cpus=16)
    (found,) = diagnose(evidence)
    # A batch takes 0.16 s, with room 0.2 s; the rest of the step 40 ms: eight processes, for four leave 10 ms of 50.
    assert found.text == (
        "input-bound: 80% of the step waits for data (0.16 s of 0.20 s); with data.num_workers=8 it would be about 0%"
    )
    few = dataclasses.replace(evidence, num_usable_cpus=2)
    assert diagnose(few)[0].text.endswith("it would be about 0% on 8 processor cores (here are 2)")
    # Two processes that cannot keep up need 0.4 s for a batch.
    loaded = dataclasses.replace(evidence, num_workers=2)
    assert "data.num_workers=16" in diagnose(loaded)[0].text


def test_no_number_of_processes_helps_where_a_batch_takes_a_hundred_steps() -> None:
    (found,) = diagnose(Evidence(steps=steps(step_s=1.01, data_s=1.0)))
    assert "a batch takes 1.00 s to make" in found.text


def test_a_little_waiting_is_healthy() -> None:
    (found,) = diagnose(Evidence(steps=steps(data_s=0.01)))
    assert found.kind == "healthy"
    assert found.text == (
        "healthy: 90% of the step is forward, backward and optimizer; the largest overhead is waiting for data (10%)"
    )


def test_encoding_in_every_step_is_not_healthy() -> None:
    phases = {"data": 0.002, "encode": 0.02, "forward": 0.028}
    encoding = [{"step": number, "step_s": 0.05, "phases_s": phases} for number in range(60)]
    (found,) = diagnose(Evidence(steps=encoding, uncached=("levers.cache_latents=true",)))
    assert found.text == (
        "encode-bound: 40% of the step encodes images and captions (20 ms of 50 ms); "
        "with levers.cache_latents=true that is done once, before the first step"
    )
    few = [{**step, "phases_s": {**phases, "encode": 0.005, "forward": 0.043}} for step in encoding]
    assert kinds(Evidence(steps=few)) == ["healthy"]


def test_a_slow_tracker_is_not_healthy() -> None:
    slow = [{"step": n, "step_s": 0.1, "phases_s": {"logging": 0.03, "forward": 0.07}} for n in range(60)]
    assert diagnose(Evidence(steps=slow))[0].text.startswith("logging-bound: 30% of the step goes to logging")


def test_no_steps_no_diagnosis() -> None:
    assert diagnose(Evidence(steps=[])) == ()


def grown(per_step: int, start: int = 10**9, num: int = 60) -> list[tuple[int, int]]:
    return [(number, start + number * per_step) for number in range(num)]


def test_a_leak_is_growth_that_does_not_stop() -> None:
    leak = find_leak(grown(10**6))
    assert leak is not None
    assert leak.bytes_per_step == pytest.approx(10**6)
    assert find_leak(grown(10**5)) is None, "less than 1 % is not worth an alarm"
    assert find_leak(grown(10**6)[:20]) is None, "too few steps"
    fills_up = [(number, 10**9 + 10**6 * min(number, 30)) for number in range(60)]
    assert find_leak(fills_up) is None, "a cache that fills"
    jumps = [(number, 10**9 + (10**8 if number > 30 else 0)) for number in range(60)]
    assert find_leak(jumps) is None, "one larger batch"
    falls = [(number, 10**9 - number * 10**6) for number in range(60)]
    assert find_leak(falls) is None


@pytest.mark.parametrize("place", ["host", "device"])
def test_a_leak_in_words(place: str) -> None:
    leaking = steps()
    for step in leaking:
        step["memory_bytes"] = {place: 2**30 + step["step"] * 2**20}
    (found,) = diagnose(Evidence(steps=leaking))
    where = "device" if place == "device" else "process"
    assert found.text.startswith(f"memory leak: memory of the {where} grows by 1.00 MiB with every step")


def test_host_bound_by_what_the_device_still_owes() -> None:
    busy = {"forward": 0.05, "backward": 0.045}
    assert kinds(Evidence(steps=steps(num_owed=0, host_phases_s=busy))) == ["host-bound"]
    # The device is behind: the host waits for it, not it for the host.
    assert kinds(Evidence(steps=steps(num_owed=3, host_phases_s=busy))) == ["healthy"]
    assert kinds(Evidence(steps=steps(num_owed=0, host_phases_s={"forward": 0.01}))) == ["healthy"]


def test_what_a_trace_shows() -> None:
    assert kinds(Evidence(steps=steps(), digest=shares(launch=0.4))) == ["host-bound"]
    assert kinds(Evidence(steps=steps(), digest=shares(copy=0.4))) == ["copy-bound"]
    assert kinds(Evidence(steps=steps(), digest=shares(launch=0.1, copy=0.1))) == ["healthy"]
    assert kinds(Evidence(steps=steps(), digest=shares(idle=0.4))) == ["idle"]
    assert kinds(Evidence(steps=steps(), digest=shares(input=0.4))) == ["input-bound"]


def test_a_cpu_that_spends_a_third_of_the_step_between_operators_is_host_bound() -> None:
    on_cpu = dataclasses.replace(shares(launch=0.38, input=0.06), device="cpu")
    (found,) = diagnose(Evidence(steps=steps(data_s=0.006), digest=on_cpu))
    assert found.kind == "host-bound"
    assert found.finding.startswith("38% of the step passes between operators, in Python")


@pytest.mark.parametrize("overhead", ["input", "launch", "idle", "copy"])
def test_healthy_never_stands_beside_a_share_of_a_third(overhead: str) -> None:
    for device in ("cpu", "cuda"):
        digest = dataclasses.replace(shares(**{overhead: 0.34}), device=device)
        assert "healthy" not in kinds(Evidence(steps=steps(data_s=0.001), digest=digest))


def test_healthy_names_the_largest_overhead_of_the_trace() -> None:
    (found,) = diagnose(Evidence(steps=steps(data_s=0.006), digest=shares(input=0.06, launch=0.25, copy=0.02)))
    assert found.text.endswith("; the largest overhead of the profiled steps is starting operators (25%)")
    assert found.share == 0.25


def test_the_largest_share_comes_first() -> None:
    slow = steps(step_s=0.1, data_s=0.02)
    assert kinds(Evidence(steps=slow, digest=shares(launch=0.35, copy=0.4))) == [
        "copy-bound",
        "host-bound",
        "input-bound",
    ]


def reported(num: int, **quantities: Any) -> list[dict[str, Any]]:
    return [{"sensors": {"nvidia:0": quantities, "host": {"clock_mhz": 800}}}] * num


def test_throttled_by_its_own_word_or_by_its_clock() -> None:
    hot = reported(10, clock_mhz=1200, throttled=["heat (hardware)"], temperature_c=95)
    (found,) = diagnose(Evidence(steps=steps(), telemetry=hot))
    assert found.text.startswith(
        "throttled: nvidia:0 slows itself down in 100% of the samples (heat (hardware)): up to 95 °C"
    )
    slower = [*steps(30), *({**step, "step": 30 + step["step"]} for step in steps(30, step_s=0.14))]
    falling = [*reported(10, clock_mhz=1800), *reported(10, clock_mhz=1200)]
    (found,) = diagnose(Evidence(steps=slower, telemetry=falling))
    assert found.text.startswith("throttled: the clock of nvidia:0 fell: its clock is at 67% of what it was")
    # At its power cap, as devices are; and a clock that moves while the steps do not.
    assert kinds(Evidence(steps=steps(), telemetry=reported(10, clock_mhz=1500, throttled=["power cap"]))) == [
        "healthy"
    ]
    assert kinds(Evidence(steps=steps(), telemetry=falling)) == ["healthy"]
    assert kinds(Evidence(steps=slower)) == ["healthy"], "no sensor reported anything"


def test_steps_that_were_looked_at_do_not_count() -> None:
    looked = steps()
    for step in looked[20:50]:
        step["phases_s"] = {"data": 0.09, "forward": 0.01}
    assert kinds(Evidence(steps=looked)) == ["input-bound"]
    assert kinds(Evidence(steps=looked, profiled=frozenset(range(20, 50)))) == ["healthy"]
