"""A device's speed: where it is from, memory, host and links."""

import pytest

from foretune.catalog.devices import Device, devices, generic_card
from foretune.planner.timing.collectives import ring_factor
from foretune.planner.timing.device_speed import KERNEL_S, PublishedSpeed, speed_of
from foretune.planner.timing.host_operators import AUTOGRAD_OPERATOR, HOST_S_PER_OPERATOR
from foretune.planner.timing.speed import DeviceSpeed, NotKnown
from tests.work_counts import work_of

MIB = 2**20


def speed(name: str) -> DeviceSpeed:
    return speed_of(devices()[name])


def memory_only() -> Device:
    return generic_card("16GiB", memory_gb=16, reported_memory_mib=None)


def test_evidence_says_where_it_is_from() -> None:
    assert speed("h100-sxm").evidence == "kernel tables"
    # The same chip, clocks and bandwidth with more memory.
    assert speed("h100-sxm-96gb").evidence == "kernel tables"
    assert speed("h100-pcie").evidence == "data sheet"
    assert speed("rtx-4090").evidence == "data sheet"
    assert speed_of(memory_only()).evidence == "data sheet"


def test_memory_bound_kernels_use_most_of_the_bandwidth() -> None:
    assert speed("l40s").bytes_s(864e9) == pytest.approx(1 / 0.85, rel=1e-4)
    assert speed("l40s").bytes_s(0) == KERNEL_S


def test_what_fits_into_the_cache_is_not_read_from_memory() -> None:
    """An L40S has 96 MB: a kernel that moves 40 MB finds its tensors there, one that moves 56 MB does not."""
    per_mb = 1e6 / (864e9 * 0.85)
    assert speed("l40s").bytes_s(40e6) - KERNEL_S == pytest.approx(40 * per_mb / 3)
    assert speed("l40s").bytes_s(56e6) - KERNEL_S == pytest.approx(56 * per_mb)
    # Of a T4 it is not known.
    assert speed("t4").bytes_s(1e6) - KERNEL_S == pytest.approx(1e6 / (320e9 * 0.85))


def test_a_card_without_its_bandwidth_is_not_known() -> None:
    with pytest.raises(NotKnown, match="bandwidth_gb_per_s"):
        speed_of(memory_only()).bytes_s(1e6)


def test_the_host_takes_the_same_time_for_every_device() -> None:
    assert speed("rtx-3060").launch_s() == speed("b200").launch_s() == HOST_S_PER_OPERATOR
    assert speed("b200").launch_s(issued_by="autograd") == pytest.approx(HOST_S_PER_OPERATOR * AUTOGRAD_OPERATOR)


def test_copies_use_the_link_of_the_catalogue() -> None:
    assert speed("rtx-4060-ti-16gb").copy_s(16e9) == pytest.approx(1 / 0.8, rel=1e-4)
    assert speed("rtx-5090").copy_s(64e9) == pytest.approx(1 / 0.8, rel=1e-4)
    # Data sheets of these name NVLink: the PCIe of their generation is assumed, as for the transfers of a plan.
    assert speed("a100-80gb-sxm").copy_s(32e9) == pytest.approx(1 / 0.8, rel=1e-4)
    assert speed("h100-sxm").copy_s(64e9) == pytest.approx(1 / 0.8, rel=1e-4)
    with pytest.raises(NotKnown, match="share their memory"):
        speed("m4-max-40").copy_s(1e6)


def test_collectives_are_as_measured() -> None:
    assert speed("h100-sxm").collective_s("all_reduce", MIB, 8) == pytest.approx(25.4e-6, rel=0.003)
    assert speed("h100-sxm").collective_s("all_gather", 512 * MIB, 8) == pytest.approx(1402e-6, rel=0.003)
    # Between sizes, beyond the largest, below the smallest.
    between = speed("h100-sxm").collective_s("all_reduce", 1.5 * MIB, 8)
    assert 25.4e-6 < between < speed("h100-sxm").collective_s("all_reduce", 2 * MIB, 8)
    assert speed("h100-sxm").collective_s("all_gather", 2048 * MIB, 8) == pytest.approx(4 * 1402e-6, rel=0.003)
    assert speed("h100-sxm").collective_s("all_gather", 1, 8) == pytest.approx(10.14e-6, rel=0.003)


def test_collectives_among_other_numbers_of_devices() -> None:
    two, three, four, eight, more = (
        speed("a100-80gb-sxm").collective_s("all_gather", 512 * MIB, count) for count in (2, 3, 4, 8, 16)
    )
    assert two < three < four < eight < more
    assert more / eight == pytest.approx((15 / 16) / (7 / 8))
    assert speed("a100-80gb-sxm").collective_s("all_gather", 512 * MIB, 1) == 0


def test_collectives_without_a_table_follow_the_link() -> None:
    assert ring_factor("all_reduce", 8) == 2 * 7 / 8
    assert ring_factor("reduce_scatter", 4) == 3 / 4
    # NVLink of 300 GB/s in both directions.
    assert speed("v100-sxm2-32gb").collective_s("all_gather", 1e9, 8) == pytest.approx(7 / 8 / 105, rel=0.01)
    # A bridge between two cards; three of them use PCIe.
    pair, three = (speed("rtx-3090").collective_s("all_gather", 1e9, count) for count in (2, 3))
    assert pair == pytest.approx(0.5 / 39.4, rel=0.01)
    assert three == pytest.approx(2 / 3 / (32 * 0.36), rel=0.01)
    # NVLink of the same chip was measured, PCIe depends on the machine.
    assert speed("a100-40gb-sxm").collective_s("all_gather", 1e9, 8) == speed("a100-80gb-sxm").collective_s(
        "all_gather", 1e9, 8
    )
    ada, l40s = (speed(name).collective_s("all_gather", 1e9, 8) for name in ("rtx-6000-ada", "l40s"))
    assert ada < 0.2 * l40s


def test_the_data_sheet_is_near_nccl() -> None:
    """Where both are known: large buffers over NVLink and the PCIe of RTX PRO 6000."""
    from foretune.planner.timing.collectives import _by_data_sheet

    for name in ("a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200", "rtx-pro-6000"):
        for count in (2, 4, 8):
            measured = speed(name).collective_s("all_gather", 512 * MIB, count)
            assert _by_data_sheet(devices()[name], "all_gather", 512 * MIB, count) == pytest.approx(measured, rel=0.45)


def test_unknown_links_are_named() -> None:
    for device in (memory_only(), devices()["m4-max-40"]):
        with pytest.raises(NotKnown, match="interconnect"):
            speed_of(device).collective_s("all_reduce", 1e6, 2)


def test_a_question_is_answered_once() -> None:
    asked = PublishedSpeed(devices()["h100-sxm"], "cudnn")
    first = work_of(lambda: asked.product_s(1, 4096, 3000, 3072, "bf16"))
    again = work_of(lambda: asked.product_s(1, 4096, 3000, 3072, "bf16"))
    assert again.num_calls < first.num_calls / 3
    assert speed_of(devices()["h100-sxm"]) is speed_of(devices()["h100-sxm"])


def test_a_new_question_is_cheap() -> None:
    asked = PublishedSpeed(devices()["h100-sxm"], "cudnn")
    asked.product_s(1, 4096, 3000, 3072, "bf16")
    assert work_of(lambda: asked.product_s(1, 4096, 3001, 3072, "bf16")).num_calls < 60
