"""What stands beside the tensors, on known devices."""

import pytest

from foretune.catalog import device, devices
from foretune.core.units import GIB, MIB
from foretune.planner.block_events import Event
from foretune.planner.overheads import overhead_for, usable_bytes, with_workspaces
from foretune.planner.replay import replay


@pytest.mark.parametrize("name", devices())
def test_every_device_has_ordered_figures_with_sources(name: str) -> None:
    overhead = overhead_for(device(name))
    for part in (overhead.context, overhead.driver, overhead.display):
        assert 0 <= part.low <= part.likely <= part.high
        assert part.source
    assert 0 < usable_bytes(device(name)) <= device(name).memory_gb * GIB


@pytest.mark.parametrize(
    ("name", "visible_gib"),
    [("l4", 22.03), ("t4", 14.57), ("rtx-4090", 23.63), ("h200-sxm", 139.80), ("b200", 178.35), ("mi300x", 191.98)],
)
def test_usable_memory_is_what_torch_shows_on_the_card(name: str, visible_gib: float) -> None:
    assert usable_bytes(device(name)) / GIB == pytest.approx(visible_gib, abs=0.006)


def test_a_marketed_size_is_read_low_where_no_driver_was_asked() -> None:
    assert usable_bytes(device("h100-sxm-96gb")) == 96 * 10**9
    # One of two logical devices.
    assert usable_bytes(device("mi250x")) == 64 * 10**9


def test_unified_memory_gives_what_the_system_recommends() -> None:
    assert usable_bytes(device("m4-max-40")) / GIB == pytest.approx(0.84 * 128)
    assert overhead_for(device("m4-max-40")).allocated_bytes == 0


def test_workspaces_of_two_threads_by_architecture() -> None:
    """The published H100 peaks lie 0.04 or 0.05 GiB above the L40S peaks of the same runs."""
    l40s, h100 = (overhead_for(device(name)).allocated_bytes for name in ("l40s", "h100-sxm"))
    assert l40s == 2 * 8_519_680
    assert h100 == 2 * 32 * MIB
    assert (h100 - l40s) / GIB == pytest.approx(0.0466, abs=0.0001)


def test_workspaces_stand_before_the_step_and_are_kept() -> None:
    overhead = overhead_for(device("h100-sxm"))
    step = [Event(0, 30 * MIB, "temporary", "forward"), Event(0, 0, "temporary", "forward")]
    allocator = replay(with_workspaces(step, overhead))
    assert allocator.peak_allocated_bytes == (64 + 30) * MIB
    assert allocator.allocated_bytes == 64 * MIB
    assert allocator.peak_reserved_bytes == (64 + 30) * MIB


def test_cublaslt_has_a_workspace_of_its_own_in_earlier_releases() -> None:
    assert overhead_for(device("l40s"), shares_workspace=False).workspaces_bytes == (8_519_680, MIB) * 2
    assert overhead_for(device("mi300x"), shares_workspace=False) == overhead_for(device("mi300x"))


def test_hipblaslt_has_workspaces_of_its_own() -> None:
    assert overhead_for(device("mi300x")).allocated_bytes == 2 * (128 + 76) * MIB


def test_only_cards_for_desktops_may_share_their_memory_with_one() -> None:
    assert overhead_for(device("rtx-4090")).display.high > GIB
    assert overhead_for(device("l4")).display.high == 0
