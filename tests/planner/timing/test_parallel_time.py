"""The time of a step on several devices, from small traces with sizes that can be computed in the head."""

from dataclasses import replace
from typing import Any

import pytest

from foretune.choices.experiment import Experiment
from foretune.choices.step_form import StepForm
from foretune.core.values.step_trace import (
    NEVER,
    OUTSIDE,
    BlockKind,
    Growth,
    HostOperators,
    Moment,
    StepTrace,
    Storage,
    Work,
)
from foretune.planner.sizing import StepSize
from foretune.planner.timing.communication import BUCKET_BYTES
from foretune.planner.timing.constants import TimeConstants
from foretune.planner.timing.interconnect import Interconnect
from foretune.planner.timing.parallel_time import CONTENTION_SHARE, ParallelSeconds, parallel_step_seconds
from foretune.planner.timing.step_time import TimedStep, step_seconds
from foretune.planner.timing.work_times import WorkTimes
from foretune.planner.traces import Traces
from foretune.planner.transfers import NOTHING_MOVED
from foretune.trace.shipped import geometries
from tests.planner.timing.even_speed import EvenSpeed
from tests.work_counts import work_of

MODEL = "dit-xl-2-256"
TFLOP, GB = 1e12, 1e9
SPEED = EvenSpeed(link_bytes_per_s=GB)
NETWORK = Interconnect(domain_devices=8, gbit_per_s=100.0, is_assumed=False)
NUM_BLOCKS = 28
PLAIN = TimeConstants(products=1, host=1)


def flat(number: float) -> Growth:
    return Growth(terms=((number, (0, 0, 0, 0)),))


def product(phase: str, kind: int, tflop: float) -> Work:
    """A product of a shape with this many operations: m x n x k."""
    shape = tuple(flat(size) for size in (1, 1e4, 1e4, tflop * TFLOP / 2e8))
    return Work(
        phase=phase,
        kind=kind,
        operator="matmul",
        dtype="bfloat16",
        count=1,
        flops=flat(tflop * TFLOP),
        bytes_moved=flat(0),
        shape=shape,
    )


def trace_of(weight_bytes: float) -> StepTrace:
    """Each block takes a second forward and two back, and has this many bytes of weights; the update takes 7 s."""
    lasting = Moment(0), Moment(NEVER)
    weights = Storage(*lasting, growth=0, category=0)
    update = Work(
        phase="optimizer",
        kind=OUTSIDE,
        operator="pointwise",
        dtype="bfloat16",
        count=1,
        flops=flat(0),
        bytes_moved=flat(7e12),
    )
    return StepTrace(
        model=MODEL,
        method="full",
        precision="bf16",
        checkpointing=0.0,
        numerics="cuda",
        phases=("setup", "forward", "backward", "optimizer"),
        backward_phases=(2,),
        categories=("trained weights",),
        growths=(flat(weight_bytes),),
        outside=(),
        kinds=(BlockKind(name="block", count=NUM_BLOCKS, first=(), middle=(weights,), last=()),),
        work=(product("forward", 0, 1.0), product("backward", 0, 2.0), update),
        host_operators=(HostOperators(phase="forward", kind=0, count=1),),
        made_with={},
        made_from="hand",
    )


def step(**parallel: Any) -> TimedStep:
    train = {"steps": 1, "weight_dtype": "bf16", "gradient_accumulation": parallel.pop("passes", 1), "batch_size": 4}
    asked = {"model": MODEL, "method": {"kind": "full"}, "data": {"kind": "shapes"}, "train": train}
    levers = {"gradient_checkpointing": 0.0}
    experiment = Experiment.model_validate({**asked, "levers": levers, "parallel": parallel})
    size = StepSize(batch_size=4, height_px=256, width_px=256, num_frames=1, num_text_tokens=0, rank=1)
    return TimedStep(experiment=experiment, size=size, geometry=geometries()[MODEL], moved=NOTHING_MOVED)


def traces(weight_bytes: float = GB) -> Traces:
    found = Traces()
    form = StepForm.of(step().experiment, is_checkpointed=False)
    found._found[form.slug()] = trace_of(weight_bytes)
    return found


def seconds(weight_bytes: float = GB, speed: EvenSpeed = SPEED, **parallel: Any) -> ParallelSeconds:
    return parallel_step_seconds(step(**parallel), traces(weight_bytes), speed, WorkTimes(), NETWORK, PLAIN)


def test_one_device_sends_nothing_and_takes_no_longer() -> None:
    alone = step_seconds(step(), traces(), SPEED, WorkTimes(), PLAIN)
    found = seconds()
    assert found.step_s == alone.step_s == pytest.approx(NUM_BLOCKS * 3 + 7)
    assert found.communication.total_s == found.contention_s == 0.0
    assert found.shares()["communication"] == 0.0


def test_ddp_hides_its_buckets() -> None:
    found = seconds(devices=2)
    bucket_s, rest_s = BUCKET_BYTES / GB, NUM_BLOCKS * GB % BUCKET_BYTES / GB
    assert found.communication.total_s == pytest.approx(NUM_BLOCKS)
    # Gradients take 2 s per GB to make and 1 s to send. While the rest was made, the last full bucket was on its way.
    exposed_s = bucket_s - 2 * rest_s + rest_s
    assert found.communication.exposed_s == pytest.approx(exposed_s)
    hidden_s = NUM_BLOCKS - exposed_s
    assert found.contention_s == pytest.approx(CONTENTION_SHARE * hidden_s)
    assert found.step_s == pytest.approx(NUM_BLOCKS * 3 + 7 + exposed_s + CONTENTION_SHARE * hidden_s)
    assert sum(found.shares().values()) == pytest.approx(1)
    assert found.samples == 8


def test_ddp_sends_in_the_last_pass_only() -> None:
    once, often = seconds(devices=2), seconds(devices=2, passes=4)
    assert often.communication == once.communication
    assert often.step_s - once.step_s == pytest.approx(3 * 3 * NUM_BLOCKS)
    assert often.samples == 4 * once.samples


def test_fsdp_sends_in_every_pass_and_divides_the_update() -> None:
    once, often = (seconds(devices=8, sharding="full", passes=passes) for passes in (1, 4))
    assert once.communication.sent_bytes == pytest.approx(3 * NUM_BLOCKS * GB * 7 / 8)
    assert often.communication.sent_bytes == pytest.approx(4 * once.communication.sent_bytes)
    assert once.alone.step_s == pytest.approx(NUM_BLOCKS * 3 + 7 / 8)
    # A block computes a second forward and two back; 7/8 s to gather it, as much to reduce it.
    assert once.communication.exposed_s == pytest.approx(3 * 7 / 8)


def test_what_blocks_cannot_cover_is_exposed() -> None:
    heavy = 3 * GB
    # Each block gathers for 2.6 s beside 1 s of computation, then gathers and reduces for 5.25 s beside 2 s.
    per_block = 3 * 7 / 8
    found = seconds(heavy, devices=8, sharding="full").communication.exposed_s
    inner = NUM_BLOCKS - 2
    forward = per_block + (inner + 1) * (per_block - 1)
    backward = per_block + inner * (2 * per_block - 2) + 2 * (per_block - 2) + per_block
    assert found == pytest.approx(forward + backward)
    fast = replace(SPEED, link_bytes_per_s=3 * GB)
    assert seconds(heavy, fast, devices=8, sharding="full").communication.exposed_s == pytest.approx(3 * 7 / 8)


def test_a_slow_host_leaves_more_time_to_send() -> None:
    """While the device waits for the host, the link does not."""
    heavy = 3 * GB
    slow = replace(SPEED, launch=30.0)
    busy, waiting = (seconds(heavy, speed, devices=8, sharding="full") for speed in (SPEED, slow))
    assert waiting.alone.step_s > 5 * busy.alone.step_s
    assert waiting.communication.total_s == busy.communication.total_s
    assert waiting.communication.exposed_s == pytest.approx(3 * 3 * 7 / 8)


def test_hybrid_sharding_is_between() -> None:
    ddp, full, hybrid = (
        seconds(devices=64, **more) for more in ({}, {"sharding": "full"}, {"sharding": "hybrid", "shard_devices": 8})
    )
    assert ddp.communication.sent_bytes < hybrid.communication.sent_bytes
    assert hybrid.alone.step_s == pytest.approx(NUM_BLOCKS * 3 + 7 / 8)
    assert full.alone.step_s == pytest.approx(NUM_BLOCKS * 3 + 7 / 64)


@pytest.mark.parametrize("sharding", ["none", "full"])
def test_each_further_device_is_worth_less(sharding: str) -> None:
    steps = [seconds(devices=2**power, sharding=sharding) for power in range(1, 12)]
    times = [found.communication.total_s for found in steps]
    assert times == sorted(times)
    assert steps[-1].num_devices == 2048


def test_2048_devices_are_no_more_work_than_two() -> None:
    def work(devices: int) -> int:
        found, times = traces(), WorkTimes()
        asked = step(devices=devices, sharding="full")
        parallel_step_seconds(asked, found, SPEED, times, NETWORK)
        return work_of(lambda: parallel_step_seconds(asked, found, SPEED, times, NETWORK)).num_calls

    assert work(2048) <= 1.1 * work(16)
