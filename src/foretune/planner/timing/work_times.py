"""How long the work of a trace takes on one device, for each kind of block: on the device, and on the host."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from foretune.choices.training import Precision
from foretune.core.values.recipes import LayerRecipe, Piece
from foretune.core.values.step_trace import HOST, OUTSIDE, TO_DEVICE, TO_HOST, HostOperators, StepTrace, Work
from foretune.core.vocabulary import StepPhase
from foretune.planner.block_events import Sizes
from foretune.planner.timing import rotated_int8
from foretune.planner.timing.speed import DeviceSpeed, NotKnown, ProductFormat

_FORMATS: dict[str, ProductFormat] = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "int8": "int8",
}
_BY_BYTES = frozenset({"pointwise", "matmul", "conv", "attention"})
_BACKWARD_ATTENTION_FLOPS = 7
"""For each query, key and number of a head: the forward pass takes 4, the backward pass 10."""
_READ_AND_WRITTEN = 2


class Float32Formats(NamedTuple):
    """How a device multiplies fp32 tensors. By default torch allows TF32 for convolutions alone."""

    matmul: ProductFormat = "fp32"
    convolution: ProductFormat = "tf32"

    @classmethod
    def of_step(cls, precision: Precision) -> Self:
        """As `step.precision.PrecisionPolicy.products` sets them."""
        return cls(precision, precision) if precision in ("fp32", "tf32") else cls()


TORCH_DEFAULTS = Float32Formats()


class Times(NamedTuple):
    """Of one block, or of what is done once: seconds of the device by what bounds it, operators of the host."""

    product_s: float = 0.0
    attention_s: float = 0.0
    bandwidth_s: float = 0.0
    host_work_s: float = 0.0
    """What the host's CPU computes while the device waits: an offloaded optimizer."""
    num_operators: float = 0.0
    num_recomputing: float = 0.0
    """Of these, operators in blocks that are recomputed."""
    num_in_backward: float = 0.0
    """Of all, operators that autograd issues itself."""
    num_recomputing_in_backward: float = 0.0
    """Of these, operators in blocks that are recomputed."""
    num_in_update: float = 0.0
    """Of all, operators of the optimizer."""
    num_8bit_products: float = 0.0
    """Products of which both factors are quantised."""
    model_flops: float = 0.0
    """What the model needs."""
    recomputed_flops: float = 0.0
    attention_flops: float = 0.0
    """Of both."""
    num_bytes: float = 0.0
    """What memory-bound kernels read and write."""

    def plus(self, other: "Times", times: float = 1.0) -> "Times":
        return Times._make([mine + times * theirs for mine, theirs in zip(self, other, strict=True)])


Part = tuple[str, int]
"""Pass or update, and kind of block."""
PASS, UPDATE = "pass", "update"
_TimesKey = tuple[int, Sizes, int, str, Float32Formats, bool, bool]


class OperatorRow(NamedTuple):
    """Equal operators at given sizes."""

    part: Part
    operator: str
    dtype: str
    number: int
    flops: float
    num_bytes: float
    shape: tuple[float, ...]
    is_frozen: bool
    is_recomputed: bool
    is_masked: bool
    is_backward: bool
    """Whether it computes gradients."""


class LayoutFacts(NamedTuple):
    """Of one block of each kind, and of what is outside of them."""

    weight_bytes: dict[int, tuple[float, float]]
    """Of all weights, and of those that have gradients."""
    forward_shares: dict[int, float]
    """How much of a pass's operations the forward pass has."""


@dataclass
class WorkTimes:
    """Times of traces, cached: a search asks for the same trace, sizes and device with many settings."""

    _rows: dict[tuple[int, Sizes], tuple[StepTrace, list[OperatorRow]]] = field(default_factory=dict)
    _times: dict[_TimesKey, tuple[DeviceSpeed, dict[Part, Times]]] = field(default_factory=dict)
    layouts: dict[tuple[int, Sizes], tuple[StepTrace, "LayoutFacts"]] = field(default_factory=dict)
    """What engines of several devices send of a trace, as `layout_facts` finds it."""

    def of(
        self,
        trace: StepTrace,
        sizes: Sizes,
        speed: DeviceSpeed,
        layer: LayerRecipe | None = None,
        name: str = "",
        *,
        formats: Float32Formats = TORCH_DEFAULTS,
        only_forward: bool = False,
        is_rotated_int8: bool = False,
    ) -> dict[Part, Times]:
        """Returns the times of one block of each kind, and of what is done once.

        `layer`: what quantised layers do besides the products of the trace, named `name`. `only_forward`: without what
        a step does for gradients. `is_rotated_int8`: frozen layers of blocks are those of `rotated_int8`.
        """
        key = (id(trace), sizes, id(speed), name, formats, only_forward, is_rotated_int8)
        if key not in self._times:
            rows = self._rows_of(trace, sizes)
            issued = trace.host_operators
            shapes = _rotated_shapes(rows) if is_rotated_int8 else None
            if only_forward:
                rows = [row for row, work in zip(rows, trace.work, strict=True) if _is_forward(work)]
                issued = tuple(one for one in issued if _is_forward(one))
            # The values hold the objects whose ids are in the key.
            self._times[key] = (speed, _times(trace, rows, issued, _Kernels(speed, layer, formats, shapes)))
        return self._times[key][1]

    def _rows_of(self, trace: StepTrace, sizes: Sizes) -> list[OperatorRow]:
        key = (id(trace), sizes)
        if key not in self._rows:
            rows = [_row(work, sizes) for work in trace.work]
            if trace.method == "text":
                # Its trace does not mark weights, and all of them are frozen.
                rows = [row._replace(is_frozen=row.operator == "matmul") for row in rows]
            self._rows[key] = (trace, rows)
        return self._rows[key][1]


def _row(work: Work, sizes: Sizes) -> OperatorRow:
    return OperatorRow(
        part=(UPDATE if work.phase == StepPhase.OPTIMIZER else PASS, work.kind),
        operator=work.operator,
        dtype=work.dtype,
        number=work.count,
        flops=work.flops.at(sizes),
        num_bytes=work.bytes_moved.at(sizes),
        shape=tuple(growth.at(sizes) for growth in work.shape),
        is_frozen=work.is_frozen,
        is_recomputed=work.is_recomputed,
        is_masked=work.is_masked,
        is_backward=work.phase == StepPhase.BACKWARD and not work.is_recomputed,
    )


def _is_forward(one: Work | HostOperators) -> bool:
    return one.phase == StepPhase.FORWARD and not one.is_recomputed


class _Kernels(NamedTuple):
    """What runs the operators of a trace."""

    speed: DeviceSpeed
    layer: LayerRecipe | None
    formats: Float32Formats
    rotated_int8_shapes: frozenset[tuple[float, float]] | None = None
    """Outputs and inputs of the layers that are those of `rotated_int8`."""

    def format_of(self, row: OperatorRow) -> ProductFormat:
        found = _FORMATS.get(row.dtype, "fp32")
        if found != "fp32":
            return found
        return self.formats.convolution if row.operator == "conv" else self.formats.matmul


def _times(
    trace: StepTrace, rows: Iterable[OperatorRow], host_operators: Iterable[HostOperators], kernels: _Kernels
) -> dict[Part, Times]:
    found: dict[Part, Times] = {(phase, kind): Times() for phase in (PASS, UPDATE) for kind in _kinds(trace)}
    for row in rows:
        if row.operator in (TO_HOST, TO_DEVICE):
            continue  # the bus: `planner.transfers`
        found[row.part] = found[row.part].plus(_of_row(row, kernels))
    host_operators = tuple(host_operators)
    recomputed = {part.kind for part in host_operators if part.is_recomputed}
    for issued in host_operators:
        part = (UPDATE if issued.phase == StepPhase.OPTIMIZER else PASS, issued.kind)
        slow = issued.count if issued.kind in recomputed and part[0] == PASS else 0
        is_backward = issued.phase == StepPhase.BACKWARD and not issued.is_recomputed
        found[part] = found[part].plus(
            Times(
                num_operators=issued.count,
                num_recomputing=slow,
                num_in_backward=issued.count if is_backward else 0,
                num_recomputing_in_backward=slow if is_backward else 0,
                num_in_update=issued.count if part[0] == UPDATE else 0,
            )
        )
    return found


def _kinds(trace: StepTrace) -> tuple[int, ...]:
    return (OUTSIDE, *range(len(trace.kinds)))


def _of_row(row: OperatorRow, kernels: _Kernels) -> Times:
    speed, layer = kernels.speed, kernels.layer
    flops = {"recomputed_flops" if row.is_recomputed else "model_flops": row.flops}
    if row.operator == HOST:
        return Times(host_work_s=speed.host_bytes_s(row.num_bytes), **flops)
    if row.operator not in _BY_BYTES:
        raise NotKnown(f"the time of {row.operator} operators")
    if not row.shape:
        if row.flops:
            raise NotKnown("the shapes of products: the trace was recorded by an earlier release")
        return Times(bandwidth_s=row.number * speed.bytes_s(row.num_bytes / row.number), num_bytes=row.num_bytes)
    if (rotated := _rotated_times(row, kernels)) is not None:
        return rotated._replace(**flops)
    # A kernel reads and writes its tensors at least once: a thin product is bound by that.
    floor_s = row.number * speed.bytes_s(row.num_bytes / row.number)
    unpacked_s = _unpacking_s(row, speed, layer) if layer is not None and row.is_frozen else 0.0
    if row.operator == "attention":
        batch, heads, queries, keys, width = row.shape
        each = row.flops / row.number / max(1.0, batch * heads * queries * keys * width)
        is_backward = each > _BACKWARD_ATTENTION_FLOPS
        if row.dtype == "float32" and speed.evidence != "measured here":
            # The fused kernels compute in 16 bits. A device that was measured, was measured as the step computes.
            seconds = _product_s(row._replace(shape=(batch * heads, queries, keys, width)), kernels)
        else:
            each_s = speed.attention_s(
                batch, heads, queries, keys, width, is_backward=is_backward, is_masked=row.is_masked
            )
            seconds = row.number * each_s
        return Times(attention_s=max(seconds, floor_s), attention_flops=row.flops, **flops)
    return Times(
        product_s=max(_product_s(row, kernels), floor_s),
        bandwidth_s=unpacked_s,
        num_8bit_products=row.number if _FORMATS.get(row.dtype) in ("fp8", "int8") else 0,
        **flops,
    )


def _rotated_shapes(rows: Iterable[OperatorRow]) -> frozenset[tuple[float, float]]:
    """Returns the weights that SDNQ quantises: of blocks, and of layers outside of them that have the same shapes, as a
    refiner has; of a model without blocks all, since its embedders have few rows. It leaves embedders as they are.
    """
    frozen = [row for row in rows if row.operator == "matmul" and row.is_frozen]
    in_blocks = [row for row in frozen if row.part[1] != OUTSIDE]
    sides = {_weight_sides(row) for row in in_blocks or frozen}
    return frozenset(shape for shape in sides if rotated_int8.is_quantised(*shape))


def _weight_sides(row: OperatorRow) -> tuple[float, float]:
    _, _, n, k = row.shape
    return (k, n) if row.is_backward else (n, k)


def _rotated_times(row: OperatorRow, kernels: _Kernels) -> Times | None:
    """Returns the times of a layer of `rotated_int8`; None for all others."""
    shapes = kernels.rotated_int8_shapes
    if shapes is None or row.operator != "matmul" or not row.is_frozen or _weight_sides(row) not in shapes:
        return None
    batch, m, _, _ = row.shape
    layer = rotated_int8.layer_times(kernels.speed, batch * m, *_weight_sides(row), is_backward=row.is_backward)
    return Times(
        product_s=row.number * layer.product_s,
        bandwidth_s=row.number * layer.bandwidth_s,
        num_operators=row.number * layer.num_operators,
    )


def _product_s(row: OperatorRow, kernels: _Kernels) -> float:
    batch, m, n, k = row.shape
    # The backward pass of a convolution is one operator with up to two products of the same size.
    products = row.flops / max(1.0, 2 * batch * m * n * k)
    number_format, speed = kernels.format_of(row), kernels.speed
    if row.operator == "conv":
        # `flops` are those of equal operators together, and each of them is timed by itself.
        return row.number * speed.convolution_s(products / row.number, batch, m, n, k, number_format)
    return products * speed.product_s(batch, m, n, k, number_format)


def _unpacking_s(row: OperatorRow, speed: DeviceSpeed, layer: LayerRecipe) -> float:
    """Returns the time in which a quantised weight becomes an operand: each piece is written, and read again."""
    _, m, n, k = row.shape
    if n % layer.side_multiple or k % layer.side_multiple or n * k % layer.weights_multiple:
        return 0.0
    counts = {
        "weights": n * k,
        "inputs": k,
        "outputs": n,
        "samples": m,
        "samples x inputs": m * k,
        "samples x outputs": m * n,
        "one": 1.0,
    }

    def seconds(pieces: Iterable[Piece]) -> float:
        return sum(
            speed.bytes_s(_READ_AND_WRITTEN * piece.bytes_per_number * counts[piece.count])
            for piece in pieces
            if piece.count in counts
        )

    return row.number * seconds(layer.pieces)
