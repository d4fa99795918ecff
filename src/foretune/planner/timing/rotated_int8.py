"""Frozen linear layers of SDNQ, whose int8 products are preceded by a Hadamard rotation: what they run, and how long.

No layer of this project does this: the times are for forecasts of SimpleTuner, which trains adapters on such bases.
Read from its code (github:Disty0/sdnq at 21d60c84, training/layers/linear; settings of github:bghira/SimpleTuner,
documentation/experimental/CONVROT.md): one scale for each row of the weight, groups of 256 rotated together, helper
functions compiled by torch.compile, products in a Triton kernel.

- Forward: the input is rotated (a product with a 256 x 256 matrix), its rows are quantised, int8 product.
- Backward: the weight becomes fp32, is quantised along its other side, and so are the rows of the gradient; int8
  product; the result is rotated back.
- Inputs of fewer than 32 rows: the weight is unpacked and rotated back, and the product is in 16 bits. The unpacked
  weight is kept for the backward pass.
"""

from typing import NamedTuple

from foretune.planner.timing.speed import DeviceSpeed

_GROUP = 256
_FEWEST_ROWS = 32
_SIDE_MULTIPLE = 16
_SMALLEST_SIDE = 32
_SMALLEST_WEIGHT = 16384

_SLOWER_THAN_TABLES = 1.18
"""The Triton kernel over what tables and data sheets give for int8 products. From SDNQ's own measurement on an
RTX 4090 (benchmarks/nvidia_rtx_4090.txt): 460 TFLOPS for [16384, 4096] x [4096, 8192] with the input's quantisation;
with this factor 460 are calculated, and 397 with the rotation, where 408 were measured."""

_QUANTISED_BYTES = 3
"""A compiled kernel reads a row of 16-bit numbers once more from the cache, and writes a byte for each."""
_WEIGHT_BYTES = 5 + 4 + 5
"""Backward: bytes are read and fp32 written; the largest of each column is found; fp32 is read and bytes written."""
_UNPACKED_BYTES = 3

FORWARD_OPERATORS = 18
"""Host time of a layer's forward pass, in operators that modules issue.

Measured on a CPU with PyTorch 2.13, where such an operator takes 18 us (`host_operators`) and one alone with autograd
14: a call of the compiled function 157, the Python of an autograd function 41, a dispatch of a Triton operator 34. A
Triton launch takes 11 us on a server (github:meta-pytorch/tritonbench, pull request 1002), a kernel of a compiled
graph 7 us (pull request 1017), where an operator alone takes 6.
"""
BACKWARD_OPERATORS = 30
"""As above, with three compiled functions: 75 us for one without further arguments."""


class Layer(NamedTuple):
    """Seconds of the device, and the host's time in operators."""

    product_s: float
    bandwidth_s: float
    num_operators: float


def is_quantised(outputs: float, inputs: float) -> bool:
    """Whether SDNQ quantises a weight of this shape and multiplies in int8."""
    sides = (outputs, inputs)
    is_multiple = all(side >= _SMALLEST_SIDE and side % _SIDE_MULTIPLE == 0 for side in sides)
    return is_multiple and outputs * inputs >= _SMALLEST_WEIGHT


def layer_times(speed: DeviceSpeed, rows: float, outputs: float, inputs: float, *, is_backward: bool) -> Layer:
    """Returns the times of one layer: [rows, inputs] x [inputs, outputs], or backward [rows, outputs] x its weight."""
    weights = outputs * inputs
    if rows < _FEWEST_ROWS:
        return _few_rows(speed, rows, outputs, inputs, is_backward=is_backward)
    group = _group(inputs)
    rotation_s = max(speed.product_s(1, rows * inputs / group, group, group, "bf16"), speed.bytes_s(4 * rows * inputs))
    if is_backward:
        return Layer(
            product_s=rotation_s + _SLOWER_THAN_TABLES * speed.product_s(1, rows, inputs, outputs, "int8"),
            bandwidth_s=speed.bytes_s(_WEIGHT_BYTES * weights) + speed.bytes_s(_QUANTISED_BYTES * rows * outputs),
            num_operators=BACKWARD_OPERATORS,
        )
    return Layer(
        product_s=rotation_s + _SLOWER_THAN_TABLES * speed.product_s(1, rows, outputs, inputs, "int8"),
        bandwidth_s=speed.bytes_s(_QUANTISED_BYTES * rows * inputs),
        num_operators=FORWARD_OPERATORS,
    )


def _few_rows(speed: DeviceSpeed, rows: float, outputs: float, inputs: float, *, is_backward: bool) -> Layer:
    sides = (inputs, outputs) if is_backward else (outputs, inputs)
    product_s = max(speed.product_s(1, rows, *sides, "bf16"), speed.bytes_s(2 * outputs * inputs))
    if is_backward:
        return Layer(product_s, 0.0, 0.0)
    group = _group(inputs)
    unpacking_s = speed.product_s(1, outputs * inputs / group, group, group, "bf16")
    return Layer(product_s + unpacking_s, speed.bytes_s(_UNPACKED_BYTES * outputs * inputs), FORWARD_OPERATORS / 2)


def _group(inputs: float) -> float:
    """The largest power of two that divides the inputs, up to the usual one."""
    group = _GROUP
    while inputs % group:
        group //= 2
    return group
