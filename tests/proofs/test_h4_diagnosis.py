"""What holds a run back is said in words: planted faults are all found, healthy runs raise no alarm.

Waiting for data and leaking are real runs on the CPU; a host that cannot keep up and a device that slows itself down
need a device that works behind the host's back, which here is the fake one. No figure depends on what else the machine
does: planted times pass on a virtual clock, and what a healthy run really takes is counted in processor time.
"""

import itertools
import mmap
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from foretune.analyse.diagnosis import Diagnosis, Evidence, diagnose, evidence_of
from foretune.data.batch import Batch
from foretune.data.maker import BatchMaker
from foretune.step.training_step import StepOutcome, TrainingStep
from foretune.training import session
from foretune.training.phases import PhaseClock
from tests.conftest import ProofSize
from tests.proofs.conftest import TinyModels
from tests.proofs.fake_device import FakeDevice
from tests.proofs.fake_training import Work, as_event, train
from tests.training.short_runs import short_run
from tests.virtual_clock import VirtualClock

pytestmark = pytest.mark.proof

_BATCH_S = 0.03
_PLANTED_S = {"data": 0.0005, "forward": 0.008, "backward": 0.012, "optimizer": 0.002, "logging": 0.0005}
"""What each passage through a phase takes on the virtual clock."""
_LEAKED_BYTES = 1_000_000


def real_run(tiny_models: TinyModels, work: Path, number: int, **data: Any) -> tuple[Diagnosis, ...]:
    """One training of its own seed, from its directory."""
    trained = short_run(
        tiny_models.path("flux"),
        work,
        train={"steps": 40, "seed": number, "batch_size": 1 + number % 3},
        data={"num_samples": 40, "cache_dir": str(tiny_models.cache), **data},
        validate={"num_held_out": 0},
    )
    return diagnose(evidence_of(trained.run.path))


@pytest.fixture
def slow_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch that is made in the loop's own process takes longer than the rest of the step."""
    clock, make = VirtualClock(), BatchMaker.__getitem__

    class PlantedPhases(PhaseClock):
        def leave(self) -> None:
            clock.advance(_PLANTED_S.get(self._open[-1], 0.0))
            super().leave()

    def slowly(self: BatchMaker, number: int) -> Batch:
        clock.advance(_BATCH_S)
        return make(self, number)

    monkeypatch.setattr(session, "PhaseClock", partial(PlantedPhases, now=clock))
    monkeypatch.setattr(BatchMaker, "__getitem__", slowly)


@pytest.fixture
def processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phases are what the loop's thread works in them: others that have the processor are nobody's fault."""
    monkeypatch.setattr(session, "PhaseClock", partial(PhaseClock, now=time.thread_time))


@pytest.fixture
def kept_tensors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each step keeps a megabyte that nobody asks for again; more where the tests' process is large already.

    New pages each time: what the tests before gave back to the allocator would hide the growth for a while.
    """
    call, kept = TrainingStep.__call__, []
    num_leaked_bytes = max(_LEAKED_BYTES, psutil.Process().memory_info().rss // 400)

    def leaking(self: TrainingStep, *arguments: Any) -> StepOutcome:
        kept.append(torch.frombuffer(mmap.mmap(-1, num_leaked_bytes), dtype=torch.uint8).fill_(1))
        return call(self, *arguments)

    monkeypatch.setattr(TrainingStep, "__call__", leaking)
    yield
    kept.clear()


def test_h4_input_bound_runs(
    slow_reads: None,
    tiny_models: TinyModels,
    tmp_path: Path,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    found = [real_run(tiny_models, tmp_path, number) for number in range(proof_size(20, 2))]
    words = [diagnosis[0].text for diagnosis in found]
    named = [
        text for text in words if re.match(r"input-bound: \d+% of the step waits for data .*num_workers=\d+", text)
    ]
    report_figure(f"{len(named)} of {len(found)} input-bound runs named: {words[0]}")
    assert len(named) == len(found)
    assert [one[0].share for one in found] == pytest.approx([0.031 / 0.054] * len(found), rel=0.02)
    # With processes of its own for it, the loop's process makes no batch.
    (wanted,) = re.findall(r"num_workers=(\d+)", words[0])
    assert real_run(tiny_models, tmp_path, 0, num_workers=int(wanted))[0].kind == "healthy"


def test_h4_leaking_runs(
    kept_tensors: None,
    tiny_models: TinyModels,
    tmp_path: Path,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    found = [real_run(tiny_models, tmp_path, number) for number in range(proof_size(20, 2))]
    words = [diagnosis[0].text for diagnosis in found]
    named = [text for text in words if text.startswith("memory leak: memory of the process grows by ")]
    report_figure(f"{len(named)} of {len(found)} leaking runs named: {words[0]}")
    assert len(named) == len(found)


def test_h4_healthy_runs(
    processor_time: None,
    tiny_models: TinyModels,
    tmp_path: Path,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    found = [real_run(tiny_models, tmp_path, number) for number in range(proof_size(20, 2))]
    alarms = [diagnosis.text for one in found for diagnosis in one if diagnosis.kind != "healthy"]
    report_figure(f"{len(alarms)} alarms in {len(found)} healthy runs on the CPU: {found[0][0].text}")
    assert alarms == []


# ---- on the fake device

HEALTHY = Work()
HOST_BOUND = Work(forward_s=0.001, backward_s=0.002, num_launches=20, launch_s=0.0003)
INPUT_BOUND = Work(batch_s=0.03)


def fake_run(work: Work, number: int, slow_after: float | None = None) -> tuple[Diagnosis, ...]:
    """Forty steps with a sensor that is read at each; from a share of them on the device may slow itself down."""
    num_steps = 40
    begins = num_steps if slow_after is None else round(slow_after * num_steps) + number % 5
    sensors = []
    device = FakeDevice(VirtualClock())
    readings = train(device, work, num_steps, before_step=lambda step: slow_down(device, step >= begins))
    steps = [as_event(reading) for reading in readings]
    for step in range(num_steps):
        is_slow = step >= begins
        reported = {"clock_mhz": 1260 if is_slow else 1800, "throttled": ["hot"] if is_slow else ["power cap"]}
        sensors.append(
            {"kind": "telemetry", "sensors": {"fake:0": {**reported, "temperature_c": 92 if is_slow else 70}}}
        )
    return diagnose(Evidence(steps=steps, telemetry=sensors, num_workers=work.num_workers, num_usable_cpus=8))


def slow_down(device: FakeDevice, is_slow: bool) -> None:
    device.speed = 0.7 if is_slow else 1.0


def test_h4_host_bound_on_the_fake_device(proof_size: ProofSize, report_figure: Callable[[str], None]) -> None:
    found = [fake_run(HOST_BOUND, number) for number in range(proof_size(20, 2))]
    words = [one[0].text for one in found]
    named = [text for text in words if re.match(r"host-bound: the host needs \d+% of the step", text)]
    report_figure(f"{len(named)} of {len(found)} host-bound runs named: {words[0]}")
    assert len(named) == len(found)


def test_h4_input_bound_on_the_fake_device(report_figure: Callable[[str], None]) -> None:
    """The mend mends: with as many processes as are named the device does not wait, with a quarter of them it does.

    Without them it waits for less than a batch takes, because it still works while the host makes the next one.
    """
    found = fake_run(INPUT_BOUND, 0)[0]
    (wanted,) = map(int, re.findall(r"num_workers=(\d+)", found.text))
    mended, too_few = (fake_run(replace(INPUT_BOUND, num_workers=num), 0)[0] for num in (wanted, wanted // 4))
    report_figure(f"{found.text}; then {mended.text}")
    assert found.kind == "input-bound"
    assert found.share == pytest.approx((0.03 - 0.013) / 0.03, rel=0.05)
    assert mended.kind == "healthy"
    assert mended.share < 0.05
    assert too_few.kind == "input-bound"


def test_h4_throttled_on_the_fake_device(proof_size: ProofSize, report_figure: Callable[[str], None]) -> None:
    found = [fake_run(HEALTHY, number, slow_after=0.4) for number in range(proof_size(20, 2))]
    words = [one[0].text for one in found]
    named = [text for text in words if re.match(r"throttled: fake:0 slows itself down in \d+% of the samples", text)]
    report_figure(f"{len(named)} of {len(found)} throttled runs named: {words[0]}")
    assert len(named) == len(found)
    assert all("its clock is at 70% of what it was" in text for text in words)


def test_h4_healthy_on_the_fake_device(proof_size: ProofSize, report_figure: Callable[[str], None]) -> None:
    found = [fake_run(HEALTHY, number) for number in range(proof_size(20, 2))]
    alarms = [diagnosis.text for diagnosis in itertools.chain(*found) if diagnosis.kind != "healthy"]
    report_figure(f"{len(alarms)} alarms in {len(found)} healthy runs on the fake device: {found[0][0].text}")
    assert alarms == []
