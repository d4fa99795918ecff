"""The memory of one of several devices, known before.

The plan's rules for sharding come from what FSDP2 does, so they are held against FSDP2 itself: a process that believes
to be one of many, whose collectives do nothing, and the profiler's record of its allocations. Over gloo, FSDP2 also
has gloo's own copies, which threads free at their own time, so that no two runs take the same memory. DDP runs in two
real processes over gloo.
"""

import statistics
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from foretune.planner.expansion import expand_variant
from foretune.planner.live_memory import find_peak
from foretune.planner.sizing import StepSize
from foretune.planner.streams import device_events
from foretune.planner.traces import Traces, mixed_step, variant_of
from foretune.trace.geometry import geometry_of
from foretune.trace.making import make_point_trace
from tests.proofs.h14_cases import Case
from tests.training.rank_runs import run_ranks

if TYPE_CHECKING:
    from tests.conftest import ProofSize
    from tests.forked_python import ForkedPython

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("operators_are_remembered"), pytest.mark.takes_turns]

_FEW, _MANY = {"devices": 2}, {"devices": 8}
_FULL = {"sharding": "full"}
CASES: list[tuple[Case, dict[str, Any]]] = [
    (Case(family, method, "fp32", "wide", 2, "middle", checkpointing, accumulation, False, 1), parallel)
    for family, accumulation in (("flux", 1), ("sd3", 1), ("flux", 2))
    for method in ("full", "lora-32")
    for checkpointing in (0.0, 1.0)
    for parallel in (_FEW, {**_FEW, **_FULL}, {**_MANY, **_FULL})
]
CASES += [
    (Case(family, "full", "bf16", "wide", 2, "middle", checkpointing, accumulation, has_ema, 1), {**_FULL, **devices})
    for family, accumulation, has_ema in (("flux", 1, False), ("sd3", 2, True))
    for checkpointing in (0.0, 1.0)
    for devices in (_FEW, _MANY, {**_MANY, "gather_dtype": "fp32"})
]
_ROUTINE = (1, 4, 8, 11, 12, 17, 23, 24, 28, 35, 37, 41, 45)
"""Both engines, families, methods and numbers of devices; with and without checkpointing, accumulation and mixed
precision.
"""


def planned(case: Case, parallel: dict[str, Any]) -> tuple[int, int]:
    """The peak of a step on one of the devices, and on the only one."""
    asked, family, sizes = case.experiment(), case.model(), case.sizes()
    rank = getattr(asked.method, "rank", 0)
    size = StepSize(
        batch_size=sizes.batch_size,
        height_px=sizes.height_px,
        width_px=sizes.width_px,
        num_frames=1,
        num_text_tokens=sizes.num_text_tokens,
        rank=rank,
    )
    traces = Traces(lambda form, _: make_point_trace(form.experiment(), family, sizes, rank, "cpu"))
    geometry = geometry_of(family)
    peaks = []
    for section in (parallel, {}):
        experiment = asked.model_copy(update={"parallel": type(asked.parallel).model_validate(section)})
        mixed = mixed_step(traces, experiment, size, geometry, "cpu")
        variant = variant_of(experiment, geometry)
        events = device_events(expand_variant(mixed.kept, mixed.checkpointed, size.in_trace(geometry), variant))
        peaks.append(find_peak(events, num_largest=0).num_bytes)
    return peaks[0], peaks[1]


def test_the_memory_of_one_of_several_devices_is_known_before(
    forked_python: "ForkedPython", proof_size: "ProofSize", report_figure: Callable[[str], None]
) -> None:
    rows = CASES if proof_size(1, 0) else [CASES[index] for index in _ROUTINE]
    errors, baselines = [], []
    for case, parallel in rows:
        expected, alone = planned(case, parallel)
        is_sharded = "sharding" in parallel
        peaks, *_ = run_ranks(
            forked_python.python,
            1 if is_sharded else parallel["devices"],
            "measured",
            program="tests.proofs.rank_memory",
            case=asdict(case),
            parallel=parallel,
            is_fake=is_sharded,
        )
        errors.append(abs(expected / max(peaks) - 1))
        divided = alone / (parallel["devices"] if is_sharded else 1)
        baselines.append(abs(divided / max(peaks) - 1))
    order, baseline = sorted(errors), statistics.median(baselines)
    p95 = order[round(0.95 * (len(order) - 1))]
    report_figure(
        f"{len(rows)} trainings on one of 2 and 8 devices: error median {statistics.median(errors):.3%}, "
        f"p95 {p95:.2%}, most {order[-1]:.2%}; one device's memory divided by their number: median {baseline:.1%}"
    )
    assert order[-1] <= 0.04
    assert statistics.median(errors) < 0.005 < baseline
