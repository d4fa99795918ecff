"""Times by a profile: exact at its points, sensible between and beyond them."""

import pytest

from foretune.planner.timing.calibrated_speed import CalibratedSpeed
from foretune.planner.timing.grid import Grid
from foretune.planner.timing.speed import DeviceSpeed, NotKnown
from tests.device_profiles import OVERHEAD_S, RATE, copies_and_collectives, device_profile, timing


@pytest.fixture
def speed() -> CalibratedSpeed:
    return CalibratedSpeed(device_profile(), attention_format="fp32")


def test_it_is_a_speed_that_was_measured_here(speed: CalibratedSpeed) -> None:
    answered: DeviceSpeed = speed
    assert answered.evidence == "measured here"
    assert answered.launch_s() == 8e-6


def test_measured_points_are_answered_exactly(speed: CalibratedSpeed) -> None:
    profile = speed.profile
    for product in profile.products:
        found = speed.product_s(product.batch, product.m, product.n, product.k, "fp32")
        assert found == pytest.approx(product.timing.seconds, rel=1e-9), product
    for one in profile.attention:
        found = speed.attention_s(1, one.heads, one.queries, one.keys, 64, is_backward=one.is_backward)
        assert found == pytest.approx(one.timing.seconds), one
    for kernel in profile.memory:
        assert speed.memory_s(kernel.operator, kernel.num_bytes) == pytest.approx(kernel.timing.seconds), kernel
        assert speed.bytes_s(kernel.num_bytes) == pytest.approx(kernel.timing.seconds), "all kernels are alike here"
    for conv in profile.convolutions:
        found = speed.convolution_s(2 if conv.is_backward else 1, 1, conv.m, conv.n, conv.k, "fp32")
        assert found == pytest.approx(conv.timing.seconds), conv


def test_a_convolution_near_a_measured_one_is_as_far_from_its_products(speed: CalibratedSpeed) -> None:
    """Forward 1.5 times as long as the product, backward 1.2 times; and so for groups."""
    as_product_s = speed.product_s(1, 1000, 60, 250, "fp32")
    assert speed.convolution_s(1, 1, 1000, 60, 250, "fp32") == pytest.approx(1.5 * as_product_s)
    assert speed.convolution_s(2, 1, 1000, 60, 250, "fp32") == pytest.approx(1.2 * 2 * as_product_s)
    groups_s = speed.product_s(4, 1000, 60, 250, "fp32")
    assert speed.convolution_s(1, 4, 1000, 60, 250, "fp32") == pytest.approx(1.5 * groups_s)


def test_dispatch_depends_on_what_is_dispatched() -> None:
    """As measured, or as an earlier release measured it."""
    speed = CalibratedSpeed(device_profile())
    assert speed.launch_s(has_adapters=True) == 8e-6
    assert speed.launch_s(is_recomputed=True) == pytest.approx(8e-6)
    assert speed.update_s() == 0
    dispatch = speed.profile.dispatch.model_copy(
        update={
            "recomputed": timing(1e-5),
            "with_adapters": timing(2e-5),
            "recomputed_with_adapters": timing(3e-5),
            "update": timing(4e-5),
        }
    )
    newer = CalibratedSpeed(device_profile(dispatch=dispatch))
    assert newer.launch_s() == 8e-6
    assert newer.launch_s(is_recomputed=True) == 1e-5
    assert newer.launch_s(has_adapters=True) == 2e-5
    assert newer.launch_s(has_adapters=True, is_recomputed=True) == 3e-5
    assert newer.update_s() == pytest.approx(4e-5 - 2 * 2e-6), "two operators are in the trace"
    on_a_device = CalibratedSpeed(device_profile(dispatch=dispatch, **copies_and_collectives()))
    assert on_a_device.update_s() == 0, "one kernel updates many tensors"


@pytest.mark.parametrize("sizes", [(96, 320, 512), (17, 1000, 900), (512, 512, 512), (300, 16, 700)])
def test_between_points_a_smooth_device_is_within_a_tenth(speed: CalibratedSpeed, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    assert speed.product_s(1, m, n, k, "fp32") == pytest.approx(OVERHEAD_S + m * n * k / RATE, rel=0.1)


def test_more_work_never_takes_less_time(speed: CalibratedSpeed) -> None:
    times = [speed.product_s(1, m, 64, 64, "fp32") for m in range(1, 5000, 13)]
    assert times == sorted(times)


def test_above_the_largest_size_time_grows_with_the_work(speed: CalibratedSpeed) -> None:
    largest = speed.product_s(1, 1024, 1024, 1024, "fp32")
    assert speed.product_s(1, 4096, 1024, 1024, "fp32") == pytest.approx(4 * largest)
    assert speed.product_s(1, 2048, 2048, 2048, "fp32") == pytest.approx(8 * largest)
    assert speed.bytes_s(2**26) == pytest.approx(4 * 4e-3)


def test_below_the_smallest_size_the_overhead_remains(speed: CalibratedSpeed) -> None:
    smallest = speed.product_s(1, 16, 16, 16, "fp32")
    assert speed.product_s(1, 1, 4, 2, "fp32") == smallest
    assert speed.bytes_s(8) == pytest.approx(1e-6)


def test_bytes_have_no_single_bandwidth(speed: CalibratedSpeed) -> None:
    in_cache, beyond = 2**20 / speed.bytes_s(2**20), 2**24 / speed.bytes_s(2**24)
    assert in_cache > 2 * beyond


def test_batched_products_are_as_much_faster_as_was_measured_nearby(speed: CalibratedSpeed) -> None:
    single = speed.product_s(1, 128, 64, 64, "fp32")
    assert speed.product_s(8, 128, 64, 64, "fp32") == pytest.approx(8 * single * 6 / 8)


def test_what_was_not_measured_is_not_known(speed: CalibratedSpeed) -> None:
    with pytest.raises(NotKnown, match=r"matrix products in fp8 were not measured on Test CPU\. Run: foretune cal"):
        speed.product_s(1, 64, 64, 64, "fp8")
    with pytest.raises(NotKnown, match="attention in bf16 was not measured"):
        CalibratedSpeed(device_profile()).attention_s(1, 4, 64, 64, 64, is_backward=False)
    with pytest.raises(NotKnown, match="copies between host and device"):
        speed.copy_s(100)
    with pytest.raises(NotKnown, match="all_gather among 2 devices"):
        speed.collective_s("all_gather", 2**20, 2)


def test_copies_and_collectives_of_an_accelerator() -> None:
    speed = CalibratedSpeed(device_profile(**copies_and_collectives()))
    assert speed.copy_s(2**20) == pytest.approx(1e-4)
    assert speed.copy_s(2**22) == pytest.approx((1e-4 * 1e-3) ** 0.5)
    assert speed.collective_s("all_reduce", 2**21, 2) == pytest.approx(4e-4)
    with pytest.raises(NotKnown, match="among 4 devices"):
        speed.collective_s("all_reduce", 2**20, 4)


def test_a_corner_that_was_not_measured_is_reached_at_the_rate_of_the_nearest() -> None:
    grid = Grid({(64, 64): 1.0, (64, 256): 3.0, (256, 64): 3.0})
    assert grid.at((256, 256)) == pytest.approx(12.0)
    assert grid.at((64, 256)) == pytest.approx(3.0)
    assert 3.0 < grid.at((128, 256)) < 12.0


def test_a_format_of_few_products_is_still_answered() -> None:
    """Those that are slow are measured at a few sizes only."""
    profile = device_profile()
    few = tuple(p._replace(number_format="fp16") for p in profile.products if p.m == p.n == p.k and p.batch == 1)
    speed = CalibratedSpeed(profile.model_copy(update={"products": few}))
    assert speed.product_s(1, 64, 64, 64, "fp16") == pytest.approx(OVERHEAD_S + 64**3 / RATE)
    assert speed.product_s(1, 64, 1024, 1024, "fp16") == pytest.approx(64 * 1024**2 / RATE, rel=0.3)
