"""G3: the memory of a training on a GPU, planned before it and then measured on the simulated one.

The plan is that of `foretune plan MODEL --on rtx-4090`, the training that of `foretune train`. Bytes are measured by
the simulated device's allocator, which knows nothing of plans.
"""

import json
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import foretune as ft
from foretune import catalog
from foretune.catalog import TRAINABLE
from foretune.core.values.plan import Plan
from foretune.planner.overheads import overhead_for
from foretune.planner.traces import NotTraced
from foretune.planner.verdict import Ends, decide
from foretune.trace.operator_memo import OperatorMemo
from tests.conftest import ProofSize
from tests.proofs.partial_counts import PartialCounts
from tests.proofs.rotation import how_to_repeat, turn
from tests.simulated.g3_cases import DeviceCase, device_cases

pytestmark = [
    pytest.mark.proof,
    pytest.mark.simulated,
    pytest.mark.slow,
    pytest.mark.takes_turns,
    pytest.mark.usefixtures("one_thread"),
]

NUM_CASES = 105
_CARD = "rtx-4090"
_LEAST_ERROR, _MOST_ERROR = -0.01, 0.03
_LEAST_WITHIN = 0.95
_MOST_OUTSIDE_OF_TEN = 2
"""Of the ten rows of a routine run."""
_MOST_MEDIAN_ERROR = 0.005
"""Of the tensors alone."""
_TOO_SMALL = 0.7
"""A device of this share of the low end of the plan's band is too small for the training."""


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from more threads, which wait for one another when the machine is busy."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def partial_counts(request: pytest.FixtureRequest, tmp_path: Path) -> PartialCounts:
    """Kept in pytest's own cache; where that is switched off, for this run only."""
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    folder = cache.mkdir("foretune-proofs") if cache is not None else tmp_path
    return PartialCounts(folder, request.node.name)


@pytest.fixture
def device(
    simulated_gpu: Any, operator_memo: OperatorMemo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Any]:
    """The simulated GPU with the workspaces of cuBLAS, and a cache of recorded steps that starts empty."""
    import torch

    from simaccel import as_cuda
    from simaccel.properties import Machine

    machine = Machine(os.environ["SIMACCEL"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Recordings take half as long where others before had the same operators on the same shapes.
    monkeypatch.setattr("foretune.trace.making.OperatorMemo", lambda: operator_memo)
    # bitsandbytes compiles its CPU kernels, which takes minutes.
    monkeypatch.setattr(torch._dynamo.config, "disable", True)
    with monkeypatch.context() as patch:
        patch.setenv("SIMACCEL_WORKSPACES", "1")
        as_cuda._configure(simulated_gpu, machine)
    yield simulated_gpu
    as_cuda._configure(simulated_gpu, machine)


def examined(case: DeviceCase, model: Path, cache_dir: Path, sim: Any) -> dict[str, Any]:
    """The plan first, then the training with as much memory as a device has on which it just fits, then with less.

    Some combinations of levers have no plan: its error says which to leave.
    """
    from tests.simulated.g3_training import fill_caches, trained

    mapping = case.mapping(model, cache_dir / f"{case.family}-{case.size}")
    try:
        (plan,) = ft.plan(mapping, on=_CARD, advice="none")
    except NotTraced as refusal:
        return {"refusal": str(refusal)}
    fill_caches(mapping)
    at_border = trained(mapping, sim, _limit_at_the_border_bytes(plan))
    too_small = trained(mapping, sim, round(plan.allocated_bytes * _TOO_SMALL))
    return {
        "planned_bytes": plan.allocated_bytes,
        "planned_workspaces_bytes": overhead_for(catalog.devices()[_CARD]).allocated_bytes,
        **asdict(at_border),
        "has_finished_with_less": too_small.has_finished,
    }


def _limit_at_the_border_bytes(plan: Plan) -> int:
    """Returns the allocator's limit on the smallest device for which the verdict is "fits".

    Everything beside the allocator takes as much as the plan counts at most.
    """
    usable_bytes = plan.process_high_bytes
    band = (plan.process_low_bytes, plan.process_bytes, plan.process_high_bytes)
    assert decide(*band, usable_bytes) == "fits"
    assert decide(*band, usable_bytes - 1) == "tight"
    return usable_bytes - Ends(overhead_for(catalog.devices()[_CARD])).most_beside_bytes


def rows_of_this_run(proof_size: ProofSize) -> list[DeviceCase]:
    """Returns all; in a routine run ten, others each day."""
    num_rows = proof_size(NUM_CASES, NUM_CASES // 10)
    first = turn() * num_rows % NUM_CASES
    rows = device_cases(NUM_CASES)
    return [*rows[first:], *rows[:first]][:num_rows]


def test_g3_memory_is_planned_and_what_fits_runs(
    device: Any,
    tiny_pipeline: Callable[..., Path],
    tmp_path: Path,
    partial_counts: PartialCounts,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    rows = rows_of_this_run(proof_size)
    found = {}
    num_refused = 0
    for case in rows:
        count = partial(examined, case, tiny_pipeline(case.family), tmp_path, device)
        row = partial_counts.part(case.name, count)
        print(json.dumps({case.name: row}), flush=True)
        if "refusal" in row:
            num_refused += 1
        else:
            found[case.name] = row
    partial_counts.forget()

    errors = {name: row["planned_bytes"] / row["peak_bytes"] - 1 for name, row in found.items()}
    trivial = {
        name: (row["parameter_bytes"] + row["workspaces_bytes"]) / row["peak_bytes"] - 1 for name, row in found.items()
    }
    # Workspaces are large beside tiny models and hide errors of tensors.
    of_tensors = {name: _tensors(row, "planned") / _tensors(row, "peak") - 1 for name, row in found.items()}
    share = statistics.median(row["workspaces_bytes"] / row["peak_bytes"] for row in found.values())
    report_figure(
        f"{len(rows)} configurations of {len({case.family for case in rows})} families ({how_to_repeat(turn())}), "
        f"{num_refused} of which a plan refuses; workspaces are {share:.0%} of a median peak"
    )
    baseline = "parameters x bytes, with workspaces"
    for what, by_name in (("with workspaces", errors), (baseline, trivial), ("tensors alone", of_tensors)):
        report_figure(f"{what}: {_summary(by_name)}")
    num_out = sum(not row["has_finished"] for row in found.values())
    num_retries = sum(row["num_retries"] > 0 for row in found.values())
    num_small = sum(row["has_finished_with_less"] for row in found.values())
    report_figure(
        f"at the verdict's border {num_out} of {len(found)} that fit ran out of memory, {num_retries} returned cached "
        f"memory; with {_TOO_SMALL:.0%} of the planned bytes {num_small} did not run out"
    )
    assert num_out == 0
    assert num_small == 0
    most_outside = proof_size(round((1 - _LEAST_WITHIN) * len(rows)), _MOST_OUTSIDE_OF_TEN)
    assert num_refused + round((1 - _share_within(errors)) * len(found)) <= most_outside
    assert _share_within(trivial) < _LEAST_WITHIN / 2
    assert abs(statistics.median(of_tensors.values())) <= _MOST_MEDIAN_ERROR
    if proof_size(1, 0):
        assert {case.family for case in rows} == set(TRAINABLE)


def _tensors(row: dict[str, Any], what: str) -> int:
    workspaces = row["planned_workspaces_bytes" if what == "planned" else "workspaces_bytes"]
    return int(row[f"{what}_bytes"] - workspaces)


def _share_within(errors: dict[str, float]) -> float:
    return statistics.mean(_LEAST_ERROR <= error <= _MOST_ERROR for error in errors.values())


def _summary(errors: dict[str, float]) -> str:
    worst = sorted(errors, key=lambda name: -abs(errors[name]))[:3]
    return (
        f"median {statistics.median(errors.values()):+.2%}, {_share_within(errors):.0%} within {_LEAST_ERROR:+.0%} to "
        f"{_MOST_ERROR:+.0%}; worst: " + "; ".join(f"{name} {errors[name]:+.2%}" for name in worst)
    )
