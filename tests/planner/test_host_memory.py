"""The host's memory: what is counted, when it is enough, and a loading that really happened."""

import subprocess
import sys
from pathlib import Path

import pytest

from foretune.core.errors import UserError
from foretune.core.units import GIB, MIB
from foretune.core.values.plan import HostMemory
from foretune.core.values.step_trace import on_host
from foretune.planner.block_events import Event
from foretune.planner.host_memory import ERROR_SHARE, HostBudget, budget_named
from foretune.planner.overheads import other_programs_on_host
from foretune.planner.phase_memory import loaded
from foretune.planner.pinned import pinned_rounding_bytes
from tests.planner.asked_plans import plan


def host(*overrides: str, on: str = "rtx-4090", budget: HostBudget | None = None) -> HostMemory:
    found = plan("flux.1-dev", *overrides, on=on, advice="none", host=budget).host
    assert found is not None
    return found


def test_page_locked_blocks_are_powers_of_two() -> None:
    gradients = on_host("gradients")
    made = [Event(1, 18 * MIB, gradients, "load"), Event(2, 32 * MIB, gradients, "load")]
    assert pinned_rounding_bytes(made) == 14 * MIB
    assert pinned_rounding_bytes([*made, Event(3, 5 * MIB, on_host("optimizer state"), "load")]) == 14 * MIB
    assert pinned_rounding_bytes([]) == 0


def test_swapped_weights_share_blocks() -> None:
    """Of 18 MiB each, 14 fill a block of 256 MiB, and the fifteenth is alone."""
    swapped = [Event(number, 18 * MIB, on_host("frozen weights"), "load") for number in range(15)]
    assert pinned_rounding_bytes(swapped) == (256 + 32 - 15 * 18) * MIB
    gradient = Event(99, 18 * MIB, on_host("gradients"), "b")
    assert pinned_rounding_bytes([*swapped, gradient]) == (256 + 32 - 15 * 18 + 14) * MIB


def test_only_what_is_there_at_the_same_time_counts() -> None:
    activations = on_host("activations")
    one_by_one = [
        Event(1, 5 * MIB, activations, "f"),
        Event(1, 0, activations, "b"),
        Event(2, 3 * MIB, activations, "f"),
    ]
    assert pinned_rounding_bytes(one_by_one) == 3 * MIB


def test_without_a_budget_there_is_a_need_and_no_verdict() -> None:
    found = host()
    assert (found.verdict, found.usable_bytes, found.advice) == (None, None, ())
    assert found.peak_phase == "loading"
    assert sum(found.bytes_by_part.values()) == found.likely_bytes
    assert found.low_bytes < found.likely_bytes < found.high_bytes


def test_weights_of_a_frozen_base_are_pages_of_a_file() -> None:
    """11.9 B weights in bf16: the system can drop them, so that little is needed at the least."""
    found = host()
    assert found.bytes_by_part["pages of weight files"] == pytest.approx(11.9e9 * 2, rel=0.01)
    assert found.low_bytes < 2 * GIB


def test_block_swap_needs_its_copies() -> None:
    plain, swapped = host(), host("levers.block_swap=28")
    copies = swapped.likely_bytes - plain.likely_bytes
    assert copies > 10 * GIB
    assert 0 < swapped.bytes_by_part["rounding of page-locked blocks"] < 0.05 * copies
    assert swapped.low_bytes > plain.low_bytes + 9 * GIB, "copies cannot be dropped"


@pytest.mark.parametrize(
    ("usable_gib", "verdict"), [(64, "fits"), (28, "tight"), (9, "does not fit")], ids=["64", "28", "9"]
)
def test_verdicts_of_block_swap(usable_gib: int, verdict: str) -> None:
    found = host("levers.block_swap=28", budget=HostBudget(usable_gib * GIB))
    assert found.verdict == verdict
    assert bool(found.advice) == (verdict != "fits")
    if verdict != "fits":
        assert found.advice[0].startswith("lower levers.block_swap=28")


def test_what_other_programs_may_take_makes_a_verdict_worse() -> None:
    need = host()
    sure = HostBudget(need.high_bytes)
    assert host(budget=sure).verdict == "fits"
    assert host(budget=HostBudget(need.high_bytes, spread_high_bytes=GIB)).verdict == "tight"


def test_dropped_pages_are_slow_and_no_failure() -> None:
    (advice,) = host(budget=HostBudget(16 * GIB)).advice
    assert "loading becomes slower, but does not fail" in advice


def test_loader_processes_are_counted() -> None:
    assert host("data.num_workers=4").likely_bytes - host().likely_bytes == 4 * 380 * MIB


@pytest.mark.parametrize("device", ["laptop-cpu-8core", "m4-max-40"])
def test_where_the_host_is_the_device_there_is_one_verdict(device: str) -> None:
    assert plan("sd3-medium", on=device, advice="none").host is None


def test_the_system_takes_its_share_of_a_size() -> None:
    other = other_programs_on_host()
    assert budget_named("32GiB") == budget_named("32 GB"), "memory of computers is sold in GiB"
    assert budget_named("32GiB").usable_bytes == 32 * GIB - other.likely
    assert budget_named("1GiB").usable_bytes == 0
    # What the system may spare is no more than there is.
    assert host(budget=budget_named("2GiB")).verdict == "does not fit"


def test_here_is_what_is_free_within_the_limit_of_a_container(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 8388608 kB\n", encoding="ascii")
    assert budget_named("here", tmp_path) == HostBudget(8 * GIB)
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(str(4 * GIB), encoding="ascii")
    (group / "memory.current").write_text(str(GIB), encoding="ascii")
    assert budget_named("here", tmp_path) == HostBudget(3 * GIB)


@pytest.mark.parametrize("text", ["lots", "32", "-4GiB", ""])
def test_no_amount_of_memory(text: str) -> None:
    with pytest.raises(UserError, match="--ram 32GiB, or --ram here"):
        budget_named(text)


_LOADING = """
import sys
from pathlib import Path
import torch
from safetensors.torch import load_file

def high_water():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

torch.ones(8, dtype=torch.bfloat16).float().sum()
before = high_water()
weights = load_file(sys.argv[1])
kept = {name: tensor.to(getattr(torch, sys.argv[2])) for name, tensor in weights.items()}
for tensor in kept.values():
    tensor.view(torch.uint8).max()
print(high_water() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark is read from /proc")
@pytest.mark.parametrize(("dtype", "bytes_per_weight"), [("bfloat16", 2), ("float32", 4)])
def test_loading_takes_what_is_forecast(tmp_path: Path, dtype: str, bytes_per_weight: int) -> None:
    """192 MiB of bf16 in 24 tensors, loaded in a fresh process as it is and as fp32."""
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    num_weights = 24 * 4 * MIB
    weights = {f"w{number}": torch.ones(4 * MIB, dtype=torch.bfloat16) for number in range(24)}
    safetensors.save_file(weights, tmp_path / "weights.safetensors")
    command = [sys.executable, "-c", _LOADING, str(tmp_path / "weights.safetensors"), dtype]
    taken = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    forecast = loaded(num_weights * bytes_per_weight, bytes_per_weight).num_bytes
    assert taken == pytest.approx(forecast, rel=ERROR_SHARE)
