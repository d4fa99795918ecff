"""What engines send, and what computation waits for, in cases that can be computed in the head."""

from dataclasses import replace

import pytest

from foretune.catalog import device
from foretune.core.errors import UserError
from foretune.planner.pcie import PcieLink
from foretune.planner.timing.communication import NOTHING_SENT, Links, Unit, UnitLayout, bucketed, sharded_pass
from foretune.planner.timing.device_speed import speed_of
from foretune.planner.timing.interconnect import (
    HOP_S,
    Group,
    Interconnect,
    collective_s,
    connection_words,
    group_of,
    interconnect_of,
)
from foretune.planner.timing.parallel_time import links_of
from foretune.planner.timing.speed import NotKnown
from foretune.planner.timing.stated_links import StatedLinks, links_named
from tests.planner.timing.even_speed import EvenSpeed
from tests.work_counts import work_of

MB, GB = 10**6, 10**9
SPEED = EvenSpeed(link_bytes_per_s=GB)
# 0.5 GB/s for each device, once the usable share is taken off.
NETWORK = Interconnect(domain_devices=8, gbit_per_s=0.5 * 8 / 0.9, is_assumed=False)
BLOCKS = UnitLayout(
    blocks=(Unit(count=10, weight_bytes=100 * MB, gradient_bytes=100 * MB, forward_s=1.0, backward_s=2.0),),
    outside=Unit(weight_bytes=50 * MB, gradient_bytes=50 * MB),
)


def links(devices: int, shards: int = 1, speed: EvenSpeed = SPEED, network: Interconnect = NETWORK) -> Links:
    return links_of(devices, shards, speed, network)


def computing(factor: float) -> UnitLayout:
    """The same blocks that compute longer."""
    blocks = (
        replace(one, forward_s=one.forward_s * factor, backward_s=one.backward_s * factor) for one in BLOCKS.blocks
    )
    return replace(BLOCKS, blocks=tuple(blocks))


def test_two_devices_sum_their_gradients() -> None:
    sent = bucketed(BLOCKS, links(2), 50 * MB)
    # Of two devices each sends a half of the buffer twice: 1,050 MB at 1 GB/s.
    assert sent.total_s == pytest.approx(1.05)
    assert sent.sent_bytes == pytest.approx(1050 * MB)
    assert sent.num_collectives == pytest.approx(21)
    # Blocks of two seconds hide all but the last bucket of the last one, and that of the rest.
    assert sent.exposed_s == pytest.approx(0.1)


def test_nothing_hides_what_is_sent_beside_no_computation() -> None:
    sent = bucketed(computing(0), links(2), 50 * MB)
    assert sent.exposed_s == pytest.approx(sent.total_s)
    sent = sharded_pass(computing(0), links(2, 2))
    assert sent.exposed_s == pytest.approx(sent.total_s)


def test_a_slow_link_leaves_what_computation_does_not_cover() -> None:
    slow = EvenSpeed(link_bytes_per_s=GB / 100)
    sent = bucketed(BLOCKS, links(2, speed=slow), 50 * MB)
    # The first bucket waits for half of the first block; then the link is never idle.
    assert sent.total_s == pytest.approx(105)
    assert sent.exposed_s == pytest.approx(1 + 105 - 20)


def test_small_gradients_are_one_collective() -> None:
    adapters = UnitLayout(blocks=(Unit(count=10, weight_bytes=100 * MB, gradient_bytes=MB // 10, backward_s=1.0),))
    sent = bucketed(adapters, links(2, speed=EvenSpeed(GB, latency_s=0.25)))
    assert sent.num_collectives == pytest.approx(1)
    assert [sent.total_s, sent.exposed_s] == pytest.approx([0.251, 0.251])


def test_shards_are_gathered_twice_and_reduced_once() -> None:
    sent = sharded_pass(BLOCKS, links(8, 8))
    weights, gradients = 10 * 100 * MB, 10 * 100 * MB + 50 * MB
    # Weights outside the blocks stay gathered.
    assert sent.sent_bytes == pytest.approx((2 * weights + 50 * MB + gradients) * 7 / 8)
    assert sent.num_collectives == 10 + 10 + 1 + 11
    assert sent.total_s == pytest.approx(sent.sent_bytes / GB)
    # Exposed: the rest, the first block of either pass, the last block's gradients and the rest's.
    assert sent.exposed_s == pytest.approx((50 + 100 + 100 + 100 + 50) * MB * 7 / 8 / GB)


def test_weights_that_stay_are_gathered_once() -> None:
    often, once = (sharded_pass(BLOCKS, links(8, 8), gathers_again=again) for again in (True, False))
    assert often.sent_bytes - once.sent_bytes == pytest.approx(1000 * MB * 7 / 8)


def test_a_frozen_base_is_gathered_and_not_reduced() -> None:
    frozen = UnitLayout(blocks=tuple(replace(one, gradient_bytes=0.0) for one in BLOCKS.blocks))
    sent = sharded_pass(frozen, links(8, 8))
    assert sent.sent_bytes == pytest.approx(2000 * MB * 7 / 8)
    assert bucketed(frozen, links(8)) == NOTHING_SENT


def test_hybrid_sharding_keeps_weights_inside() -> None:
    full, hybrid = (sharded_pass(computing(0), links(64, shards)) for shards in (64, 8))
    inside = (2 * 1000 + 50 + 1050) * MB * 7 / 8
    across = 2 * 1050 * MB / 8 * 7 / 8
    assert hybrid.sent_bytes == pytest.approx(inside + across)
    # Inside at 1 GB/s, across at 0.5: of full sharding an eighth of everything crosses, of hybrid only gradients do.
    hops = 11 * 2 * 3 * HOP_S
    assert hybrid.total_s == pytest.approx(inside / GB + across / (GB / 2) + hops)
    assert hybrid.total_s < full.total_s + across / (GB / 2) + hops


def test_over_a_slow_network_gradients_are_less_than_gradients_and_weights() -> None:
    slow = replace(NETWORK, gbit_per_s=NETWORK.gbit_per_s / 1000)
    full, hybrid = (sharded_pass(BLOCKS, links(64, shards, network=slow)).total_s for shards in (64, 8))
    # Weights twice and gradients once, or gradients twice.
    assert hybrid / full == pytest.approx(2 * 1050 / (2 * 1000 + 50 + 1050), rel=0.02)


def test_groups_of_neighbours() -> None:
    found = links(64, 8)
    assert (found.shards, found.replicas) == (Group(8, 1), Group(1, 8))
    found = links(64, 4)
    assert (found.shards, found.replicas) == (Group(4, 1), Group(2, 8))
    found = links(64, 16)
    assert (found.shards, found.replicas) == (Group(8, 2), Group(1, 4))
    assert links(64).replicas == Group(8, 8)
    assert group_of(6, NETWORK) == Group(6, 1)
    assert [links(devices).replicas.size for devices in (1, 2, 8, 512, 2048)] == [1, 2, 8, 512, 2048]


def test_between_machines_the_slower_link_counts() -> None:
    group = Group(8, 4)
    # 3/4 of 800 MB / 8 at 0.5 GB/s, and 7/8 of it at 1 GB/s.
    across, inside = 0.75 * 0.1 / 0.5, 0.7
    assert collective_s("all_gather", 800 * MB, group, SPEED, NETWORK) == pytest.approx(max(across, inside) + 3 * HOP_S)
    slow = replace(NETWORK, gbit_per_s=NETWORK.gbit_per_s / 10)
    assert collective_s("all_gather", 800 * MB, group, SPEED, slow) == pytest.approx(10 * across + 3 * HOP_S)
    assert collective_s("all_reduce", 800 * MB, group, SPEED, slow) == pytest.approx(20 * across + 4 * HOP_S)


def test_latency_grows_with_the_machines() -> None:
    def seconds(kind: str, machines: int) -> float:
        return collective_s(kind, 1, Group(1, machines), SPEED, NETWORK)  # type: ignore[arg-type]

    assert seconds("all_reduce", 256) == pytest.approx(2 * 8 * HOP_S, rel=1e-3)
    assert seconds("reduce_scatter", 256) == pytest.approx(255 * HOP_S, rel=1e-3)


@pytest.mark.parametrize("shards", ["none", "full", "hybrid"])
def test_more_devices_never_send_faster(shards: str) -> None:
    def sent(devices: int) -> float:
        if shards == "none":
            return bucketed(BLOCKS, links(devices)).total_s
        return sharded_pass(BLOCKS, links(devices, devices if shards == "full" else 8)).total_s

    times = [sent(2**power) for power in range(3, 12)]
    assert times == sorted(times)


def test_2048_devices_are_no_more_work_than_16() -> None:
    def work(devices: int) -> int:
        def both() -> object:
            return sharded_pass(BLOCKS, links(devices, devices)), bucketed(BLOCKS, links(devices))

        return work_of(both).num_calls

    assert work(2048) <= 1.1 * work(16)


def test_what_the_user_states_comes_first() -> None:
    h100 = device("h100-sxm")
    assert interconnect_of(h100) == Interconnect(domain_devices=8, gbit_per_s=400.0, is_assumed=True)
    stated = interconnect_of(h100, links_named(["100Gb/s"]))
    assert stated == Interconnect(domain_devices=8, gbit_per_s=100.0, is_assumed=False)
    assert interconnect_of(device("gb200")).domain_devices == 72


def test_links_are_read_as_data_sheets_write_them() -> None:
    both = links_named(["nvlink,400Gb/s"])
    assert both == links_named(["400 Gbit/s", "nvlink"]) == StatedLinks(nvlink=True, gbit_per_s=400.0)
    assert links_named(["50GB/s"]).gbit_per_s == 400.0
    assert links_named(["pcie=4.0x8"]).pcie == PcieLink("PCIe 4.0 x8", 16.0)
    for wrong in ("pcie=9x16", "nvlink,pcie=4x16", "-1Gb/s", "0Gb/s", "400Gb/s,200Gb/s", "fast", "nvlink=900"):
        with pytest.raises(UserError, match="--interconnect"):
            links_named([wrong])


def test_a_card_without_nvlink_has_no_time_over_it() -> None:
    with pytest.raises(NotKnown, match="NVLink between several RTX 4090"):
        interconnect_of(device("rtx-4090"), links_named(["nvlink"]))
    assert interconnect_of(device("rtx-3090"), links_named(["nvlink"])).pcie is None


def test_a_stated_slot_decides_what_is_sent_inside() -> None:
    """Half of 16 GB/s between two, by hand; a link twice as wide takes half as long, and NVLink is far faster."""
    h100 = device("h100-sxm")
    pair = Group(2, 1)
    times = [
        collective_s("all_reduce", 1e9, pair, speed_of(h100), interconnect_of(h100, links_named([text])))
        for text in ("pcie=4.0x8", "pcie=4.0x16", "nvlink")
    ]
    assert times[0] == pytest.approx(1e9 / 8e9, rel=1e-3)
    assert times[0] / times[1] == pytest.approx(2, rel=1e-3)
    assert times[2] < times[1] / 5


def test_the_words_name_every_link_that_is_used() -> None:
    inside, between = connection_words(device("h100-sxm"), 16)
    assert "NVLink4" in inside
    assert "NCCL was measured" in inside
    assert "2 machines with 400 Gbit/s" in between
    (pair,) = connection_words(device("rtx-3090"), 2)
    assert "without a bridge: foretune plan --interconnect pcie=4.0x16" in pair
    (four,) = connection_words(device("rtx-3090"), 4)
    assert "PCIe 4.0 x16" in four
    (stated,) = connection_words(device("rtx-4090"), 2, links_named(["pcie=3.0x8"]))
    assert "PCIe 3.0 x8 (as given" in stated
