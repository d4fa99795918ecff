"""Times of SDNQ's layers, by hand."""

import pytest

from foretune import catalog
from foretune.planner.timing import rotated_int8
from foretune.planner.timing.device_speed import speed_of
from tests.planner.timing.even_speed import EvenSpeed

ROWS, OUTPUTS, INPUTS = 4096, 3072, 1024
SPEED = EvenSpeed()


def flops_s(*sizes: int) -> float:
    m, n, k = sizes
    return 2 * m * n * k / 1e12


def test_forward_rotates_and_quantises_the_input() -> None:
    found = rotated_int8.layer_times(SPEED, ROWS, OUTPUTS, INPUTS, is_backward=False)
    rotation_s = flops_s(ROWS * INPUTS // 256, 256, 256)
    assert found.product_s == pytest.approx(rotation_s + 1.18 * flops_s(ROWS, OUTPUTS, INPUTS))
    assert found.bandwidth_s == pytest.approx(3 * ROWS * INPUTS / 1e12)


def test_backward_quantises_the_weight_again_and_rotates_the_result() -> None:
    found = rotated_int8.layer_times(SPEED, ROWS, OUTPUTS, INPUTS, is_backward=True)
    rotation_s = flops_s(ROWS * INPUTS // 256, 256, 256)
    assert found.product_s == pytest.approx(rotation_s + 1.18 * flops_s(ROWS, INPUTS, OUTPUTS))
    assert found.bandwidth_s == pytest.approx((14 * OUTPUTS * INPUTS + 3 * ROWS * OUTPUTS) / 1e12)
    assert found.num_operators > rotated_int8.FORWARD_OPERATORS


def test_few_rows_are_multiplied_in_16_bits() -> None:
    """As modulation layers do: the weight is unpacked once, forward."""
    forward = rotated_int8.layer_times(SPEED, 1, OUTPUTS, INPUTS, is_backward=False)
    backward = rotated_int8.layer_times(SPEED, 1, OUTPUTS, INPUTS, is_backward=True)
    assert forward.bandwidth_s == pytest.approx(3 * OUTPUTS * INPUTS / 1e12)
    assert (backward.bandwidth_s, backward.num_operators) == (0, 0)


def test_the_group_divides_the_inputs() -> None:
    """1,280 inputs have groups of 256; 320 have 64."""
    for inputs, group in ((1280, 256), (320, 64)):
        found = rotated_int8.layer_times(SPEED, ROWS, OUTPUTS, inputs, is_backward=False)
        rotation_s = max(flops_s(ROWS * inputs // group, group, group), 4 * ROWS * inputs / 1e12)
        assert found.product_s == pytest.approx(rotation_s + 1.18 * flops_s(ROWS, OUTPUTS, inputs))


def test_which_weights_are_quantised() -> None:
    assert rotated_int8.is_quantised(3072, 3072)
    assert not rotated_int8.is_quantised(3072, 24)
    assert not rotated_int8.is_quantised(3072, 100)
    assert not rotated_int8.is_quantised(64, 64)


def test_sdnq_s_own_measurement_of_an_rtx_4090() -> None:
    """benchmarks/nvidia_rtx_4090.txt: 408 TFLOPS with the rotation."""
    speed = speed_of(catalog.device("rtx-4090"))
    found = rotated_int8.layer_times(speed, 16384, 8192, 4096, is_backward=False)
    tflops = 2 * 16384 * 8192 * 4096 / (found.product_s + found.bandwidth_s) / 1e12
    assert tflops == pytest.approx(408, rel=0.05)
