"""DDP, FSDP2 and HSDP on simulated devices, with every lever that goes with them: no finding of the device, the losses
of one device, and a resumed run with the same bits.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from foretune.catalog import TRAINABLE
from foretune.choices.matrix import Cell, axes, experiment_of, refusals
from foretune.choices.running import ENGINES, Sharding
from foretune.core.units import MIB
from foretune.core.values import RunRecord
from foretune.record.run_directory import RunDirectory
from tests.matrix.cells import name_of, usual_cell
from tests.matrix.running import as_if_killed_after_the_first_step, num_different
from tests.proofs.rotation import turn
from tests.simulated.ranks import SimulatedRanks
from tests.training.short_runs import events_of, losses_of, short_mapping

pytestmark = pytest.mark.simulated

TinyPipeline = Callable[..., Path]

GLOBAL_BATCH = 4
TINY: dict[str, dict[str, Any]] = {"data": {"num_samples": 8}, "validate": {"num_held_out": 2}}
CHECKPOINTED: dict[str, Any] = {"gradient_checkpointing": 1.0}
LOWER = 2e-2
"""Tolerance of losses in bf16 and fp16, and where scales follow from what is in a batch."""
SINGLE = 1e-5
"""Tolerance of losses in fp32."""
BF16_WEIGHTS = {"precision": "bf16", "weight_dtype": "bf16"}


@dataclass(frozen=True)
class Case:
    """An experiment on several devices, and on one."""

    sections: dict[str, Any]
    family: str = "flux"
    tolerance: float = SINGLE


COMBINATIONS: dict[str, Case] = {
    "block swap": Case({"levers": {**CHECKPOINTED, "block_swap": 2}}),
    "block swap of int8": Case(
        {
            "levers": {**CHECKPOINTED, "block_swap": 2, "checkpoint_segment": 2},
            "quantize": {"denoiser": "int8"},
            "train": {"precision": "bf16"},
        },
        tolerance=LOWER,
    ),
    "block swap, activation offload, EMA on the host": Case(
        {
            "levers": {**CHECKPOINTED, "block_swap": 2, "activation_offload": True, "ema_offload": True},
            "train": {"ema": {}, "gradient_accumulation": 2},
            "save": {"asynchronous": True},
        }
    ),
    "block swap, optimizer offload": Case(
        {"levers": {**CHECKPOINTED, "block_swap": 2, "optimizer_offload": True}, "method": "lora"},
    ),
    "bf16 weights, optimizer offload": Case(
        {"levers": {**CHECKPOINTED, "optimizer_offload": True}, "method": "full", "train": BF16_WEIGHTS},
        tolerance=LOWER,
    ),
    "samples": Case({"validate": {"prompts": ["a red circle"], "num_inference_steps": 1}}),
}
SHARDED: dict[str, Case] = {
    "full": Case({"method": "full"}),
    "full in bf16, EMA": Case(
        {"method": "full", "train": {"precision": "bf16", "ema": {}}, "levers": CHECKPOINTED}, tolerance=LOWER
    ),
    "gathered in fp32": Case(
        {"method": "full", "train": {"precision": "bf16"}, "parallel": {"gather_dtype": "fp32"}}, tolerance=LOWER
    ),
    "bf16 weights": Case({"method": "full", "train": BF16_WEIGHTS}, family="sd3", tolerance=LOWER),
    "LoRA, saved in the background": Case({"save": {"asynchronous": True}, "levers": CHECKPOINTED}),
    "UNet, accumulated": Case({"method": "full", "train": {"gradient_accumulation": 2}}, family="ddpm"),
    "samples": Case({"validate": {"prompts": ["a red circle"], "num_inference_steps": 1}}),
}


def parallel_of(sharding: str, size: int) -> dict[str, Any]:
    shards = {"shard_devices": size // 2} if sharding == "hybrid" else {}
    return {"device": "cuda", "devices": size, "sharding": sharding, **shards}


Row = tuple[Sharding, str, Case]
"""Sharding, name and case."""


def rows(size: int) -> list[Row]:
    """The cases above, and each value that an experiment can choose, with all else as usual, where the engine allows
    it.
    """
    shardings: tuple[Sharding, ...] = ("none", "full") if size == 2 else ("none", "full", "hybrid")
    found: list[Row] = [("none", name, case) for name, case in COMBINATIONS.items()]
    found += [(sharding, name, case) for sharding in shardings[1:] for name, case in SHARDED.items()]
    families = tuple(TRAINABLE)
    for number, single in enumerate(single_values()):
        turned = (*families[number % len(families) :], *families[: number % len(families)])
        for sharding in shardings:
            sections = {"parallel": parallel_of(sharding, size)}
            tried = ((cell, family) for cell in (single, ("lora", *single[1:])) for family in turned)
            supported = next((one for one in tried if not refusals(one[0], one[1], "cuda", sections)), None)
            if supported is not None:
                cell, family = supported
                found.append((sharding, name_of(family, cell), case_of(cell, family)))
    return found


def single_values() -> Iterable[Cell]:
    usual = usual_cell()
    return dict.fromkeys(
        (*usual[:index], value, *usual[index + 1 :])
        for index, axis in enumerate(axes().values())
        for value in axis
        # The first four are not simulated; flash attention computes no fp32.
        if value not in ("compile", "tf32", "cudnn", "paged-adamw8bit", "flash")
    )


def case_of(cell: Cell, family: str) -> Case:
    sections = experiment_of(cell, {})
    is_exact = sections.get("train", {}).get("precision", "fp32") == "fp32"
    # Scales of FP8 products follow from what is in a batch.
    is_exact &= sections.get("quantize", {}).get("denoiser") not in ("float8-dynamic", "float8-training")
    return Case(sections, family, SINGLE if is_exact else LOWER)


@pytest.fixture(scope="module")
def two() -> Iterator[SimulatedRanks]:
    """Each sees its own device alone; the four see all devices."""
    with SimulatedRanks(2, sees_one=True) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def four() -> Iterator[SimulatedRanks]:
    with SimulatedRanks(4) as ranks:
        yield ranks


def mapping(case: Case, model: Path, work: Path, parallel: dict[str, Any], size: int) -> dict[str, Any]:
    """An experiment of three steps whose global batch is the same for every number of devices up to `size`."""
    sections = {name: dict(values) if isinstance(values, dict) else values for name, values in case.sections.items()}
    num_passes = sections.get("train", {}).get("gradient_accumulation", 1)
    global_batch = max(GLOBAL_BATCH, size * num_passes)
    train = {"batch_size": global_batch // (parallel["devices"] * num_passes), **sections.pop("train", {})}
    method = sections.pop("method", "lora")
    if isinstance(method, dict) and method["kind"] == "oft":
        method["block_size"] = 4  # the layers are tiny
    choices = sections.pop("parallel", {})
    parallel = parallel | (choices if parallel["devices"] > 1 else {})
    sections["save"] = {"every": 1, "keep": 3, **sections.get("save", {})}
    sections = {**TINY, **{name: {**TINY.get(name, {}), **values} for name, values in sections.items()}}
    return short_mapping(model, work, method, train=train, parallel=parallel, **sections)


def norms_of(run: RunDirectory) -> list[float]:
    """Of the gradients before they were clipped."""
    return [event["grad_norm"] for event in events_of(run, "step")]


def check_case(ranks: SimulatedRanks, case: Case, sharding: str, model: Path, work: Path) -> None:
    asked = mapping(case, model, work, {"device": "cuda", "devices": 1}, ranks.size)
    (alone,) = ranks.alone([{"do": "trained", "mapping": asked, "runs": str(work / "alone")}])
    asked = mapping(case, model, work, parallel_of(sharding, ranks.size), ranks.size)
    found = ranks.together({"do": "trained", "mapping": asked, "runs": str(work / "together")})
    for one in (alone, *found):
        assert "refused" not in one, one
        assert one["findings"] == []
        assert one["status"] == "finished", one["reason"]
        assert one["base_unchanged"] in (None, True)
    run = RunDirectory(Path(found[0]["run"]))
    record = run.read_record()
    assert record is not None
    assert record.measured is not None
    assert record.measured.peak_device_bytes == max(one["peak_bytes"] for one in found)
    one_device = RunDirectory(Path(alone["run"]))
    assert losses_of(run) == pytest.approx(losses_of(one_device), rel=case.tolerance)
    if sharding != "none":
        # Clipping is of the norm of all shards, which AdamW's update alone would not show.
        assert norms_of(run) == pytest.approx(norms_of(one_device), rel=10 * case.tolerance)
        assert [one["num_updates"] for one in found] == [len(losses_of(run))] * ranks.size
    again = as_if_killed_after_the_first_step(run, work)
    resumed = ranks.together({"do": "trained", "resume": str(again.path)})
    assert [(one["status"], one["findings"]) for one in resumed] == [("finished", [])] * ranks.size
    assert num_different(run, again) == 0


def executed(size: int, num_in_turn: int) -> list[Row]:
    """All rows in a full proof; in CI the first one and some that change from day to day."""
    found = rows(size)
    if os.environ.get("FORETUNE_PROOFS") == "full":
        return found
    first = turn() * num_in_turn
    places = dict.fromkeys((0, *(place % len(found) for place in range(first, first + num_in_turn))))
    return [found[place] for place in places]


def row_name(row: Row) -> str:
    return f"{ENGINES[row[0]]}-{row[1]}"


@pytest.mark.parametrize("row", executed(2, 3), ids=row_name)
def test_two_devices(row: Row, two: SimulatedRanks, tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    sharding, _, case = row
    check_case(two, case, sharding, tiny_pipeline(case.family), tmp_path)


def test_energy_and_peak_are_those_of_all_devices_of_all_hosts(
    two: SimulatedRanks, tiny_pipeline: TinyPipeline, tmp_path: Path
) -> None:
    """Sensors are stand-ins that report 100 W for each GPU that they are asked for. On one host, the second process
    holds more memory than a run needs.
    """
    held_bytes = 256 * MIB
    asked = mapping(Case({}), tiny_pipeline("flux"), tmp_path, parallel_of("none", 2), 2)

    def record_of(name: str, by_rank: dict[int, dict[str, Any]]) -> RunRecord:
        request = {"do": "trained", "mapping": asked, "runs": str(tmp_path / name)}
        found = two.together(request, {rank: {"power_w": 100.0, **more} for rank, more in by_rank.items()})
        record = RunDirectory(Path(found[0]["run"])).read_record()
        assert record is not None
        assert record.measured is not None
        return record

    one_host = record_of("one host", {0: {}, 1: {"held_bytes": held_bytes}}).measured
    assert one_host is not None
    assert one_host.mean_power_w == pytest.approx(200)
    assert one_host.peak_device_bytes is not None
    assert one_host.peak_device_bytes > held_bytes
    two_hosts = record_of("two hosts", {0: {"host": "first"}, 1: {"host": "second"}}).measured
    assert two_hosts is not None
    assert two_hosts.mean_power_w == pytest.approx(200)
    assert two_hosts.peak_device_bytes is not None
    assert two_hosts.peak_device_bytes < held_bytes
    partly = record_of("no sensor on one", {0: {"host": "first"}, 1: {"host": "second", "power_w": None}})
    assert partly.measured.energy_j is None
    assert "Energy is left out: sensors report it on 1 of 2 hosts." in partly.warnings


@pytest.mark.skipif(os.environ.get("FORETUNE_PROOFS") != "full", reason="only with FORETUNE_PROOFS=full")
def test_samples_that_take_longer_than_a_process_waits(
    two: SimulatedRanks, tiny_pipeline: TinyPipeline, tmp_path: Path
) -> None:
    """Each call of the denoiser is slow; the others notice progress. One that never returns ends the run."""
    sections = {"validate": {"prompts": ["a red circle"], "num_inference_steps": 12}, "parallel": {"timeout_s": 15.0}}
    asked = mapping(Case(sections), tiny_pipeline("flux"), tmp_path, parallel_of("none", 2), 2)
    request = {"do": "trained", "mapping": asked}
    found = two.together({**request, "runs": str(tmp_path / "slow")}, {0: {"call_s": 2.0}})
    assert [one["status"] for one in found] == ["finished", "finished"], found
    found = two.together({**request, "runs": str(tmp_path / "hangs")}, {0: {"call_s": 30.0}})
    assert {one["status"] for one in found} == {"failed"}
    assert "did not answer for 15 s" in found[1]["reason"]


@pytest.mark.skipif(os.environ.get("FORETUNE_PROOFS") != "full", reason="only with FORETUNE_PROOFS=full")
@pytest.mark.parametrize("row", rows(4), ids=row_name)
def test_four_devices(row: Row, four: SimulatedRanks, tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    sharding, _, case = row
    check_case(four, case, sharding, tiny_pipeline(case.family), tmp_path)
