"""Plans for one of several devices: what is divided, what is not."""

import pytest

from foretune import catalog
from foretune.core.vocabulary import MemoryPart, RunPhase, StepPhase
from foretune.planner.sharding import Gathering, sharded
from foretune.planner.swapping import SwapStorage
from tests.planner.asked_plans import plan

FULL = ("method.kind=full", "train.weight_dtype=bf16")


def on_devices(*overrides: str) -> dict[str, int]:
    """Bytes of a training step on each device, and on the disk for checkpoints."""
    found = plan("sd3-medium", *FULL, *overrides, on="h100-sxm", advice="none")
    by_name = {phase.phase: phase for phase in found.phases}
    step, saving = by_name[RunPhase.STEP], by_name[RunPhase.SAVE]
    assert saving.disk_bytes is not None
    return {"world": found.world_size, "step": step.device_bytes, "disk": saving.disk_bytes}


def test_more_devices_take_less_memory_each_and_save_the_same() -> None:
    alone = on_devices()
    sharded = [on_devices(f"parallel.devices={size}", "parallel.sharding=full") for size in (2, 4, 8)]
    assert [one["world"] for one in sharded] == [2, 4, 8]
    sizes = [one["step"] for one in sharded]
    assert alone["step"] > sizes[0] > sizes[1] > sizes[2]
    # Checkpoints hold whole tensors.
    assert [one["disk"] for one in sharded] == pytest.approx([alone["disk"]] * 3, rel=1e-3)


def test_hybrid_sharding_takes_what_its_group_takes() -> None:
    hybrid = on_devices("parallel.devices=16", "parallel.sharding=hybrid", "parallel.shard_devices=4")
    assert hybrid["step"] == on_devices("parallel.devices=4", "parallel.sharding=full")["step"]


def test_ddp_holds_everything_and_its_buckets() -> None:
    alone, ddp = (on_devices("train.gradient_accumulation=2", f"parallel.devices={size}") for size in (1, 2))
    assert ddp["step"] > alone["step"]
    assert ddp["disk"] == alone["disk"]


def test_each_process_loads_the_whole_model_on_the_host() -> None:
    """Only then is it sharded, block by block."""
    whole_bytes = 4 * catalog.denoiser("sd3-medium").num_params
    for devices in (2, 8):
        sharding = (f"parallel.devices={devices}", "parallel.sharding=full")
        found = plan("sd3-medium", "method.kind=full", *sharding, on="h100-sxm", advice="none")
        loading = next(phase for phase in found.phases if phase.phase == RunPhase.LOAD)
        assert loading.host_bytes is not None
        assert loading.host_bytes > whole_bytes


def test_the_update_of_shards_has_no_temporaries() -> None:
    """One fused operator updates all shards; for whole weights on a GPU torch makes lists of temporaries."""
    when = Gathering(
        forward=(0, 5),
        forward_buffer=(0, 1),
        backward=None,
        backward_buffer=None,
        gradients_until=8,
        reducing=(7, 8),
        reduced_from=8,
    )
    state = SwapStorage(9, None, 800, MemoryPart.OPTIMIZER_STATE, StepPhase.OPTIMIZER, StepPhase.OPTIMIZER)
    temporary = SwapStorage(10, 11, 400, MemoryPart.TEMPORARIES, StepPhase.OPTIMIZER, StepPhase.OPTIMIZER)
    found = [one for one in sharded([state, temporary], 4, when, accumulates=False) if one.num_bytes]
    assert [(one.category, one.num_bytes) for one in found] == [(MemoryPart.OPTIMIZER_STATE, 200)]
