"""Workspace memory that CPU operators use between a call and its return.

A recorder sees the inputs and outputs of an operator. On a CPU much happens in between: oneDNN converts images and
weights to its own layouts, attention holds tiles for each thread, mixed dtypes are first cast to one dtype. Each rule
here returns how many of these bytes are alive at once, beyond the operator's results. The rules are facts about torch's
CPU kernels and oneDNN on x86 processors with AVX-512 (and AMX for bf16, newer ones for fp16), measured per operator;
none depends on models or training settings.
"""
# ruff: noqa: PLR2004 - the numbers are block sizes and thresholds of those kernels

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from foretune.trace.cpu_integers import INTEGER_RULES

_LOW = (torch.bfloat16, torch.float16)
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class _Call:
    """A completed call of an operator."""

    args: tuple[Any, ...]
    results: list[Tensor]
    num_threads: int


class CpuWorkspaces:
    """The rules for a number of threads, and a count of the kernels that oneDNN caches."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._kernels: set[tuple[Any, ...]] = set()

    @property
    def num_kernels(self) -> dict[str, int]:
        """Number of kernels that oneDNN builds, one per kind of call, and caches: matmul, conv."""
        return dict(Counter("conv" if "conv" in name else "matmul" for name, *_ in self._kernels))

    def __call__(self, func: Any, args: tuple[Any, ...], results: list[Tensor]) -> int:
        name = func.overloadpacket.__name__
        tensors = [a for a in args if isinstance(a, Tensor)]
        is_conv = _RULES.get(name) in (_convolution, _convolution_backward)
        # fp32 products use MKL, which builds none.
        if is_conv or (_RULES.get(name) is _product and tensors[0].dtype in _LOW):
            self._kernels.add((name, *((t.shape, t.stride(), t.dtype) for t in tensors)))
        return workspace_bytes(func, args, results, self._num_threads)


def workspace_bytes(func: Any, args: tuple[Any, ...], results: list[Tensor], num_threads: int) -> int:
    """Returns the peak of bytes alive inside the operator beyond its inputs and results."""
    name = func.overloadpacket.__name__
    rule = _RULES.get(name)
    if rule is not None:
        return max(0, rule(_Call(args, results, num_threads)))
    if name in INTEGER_RULES:
        return INTEGER_RULES[name](args, results)
    return _casts(args, results) if torch.Tag.pointwise in func.tags else 0


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _casts(args: tuple[Any, ...], results: list[Tensor]) -> int:
    """Counts the casts of elementwise operators: whole inputs to the common dtype, and results from it."""
    tensors = [a for a in args if isinstance(a, Tensor) and a.dim() and a.dtype != torch.bool]
    if not tensors or len({tensor.dtype for tensor in (*tensors, *results)}) == 1:
        return 0
    common = tensors[0].dtype
    for tensor in tensors[1:]:
        common = torch.promote_types(common, tensor.dtype)
    written_low = [result for result in results if result.dtype in _LOW]
    return sum(tensor.numel() * common.itemsize for tensor in (*tensors, *written_low) if tensor.dtype != common)


# ---- attention


def _attention(call: _Call) -> int:
    """Counts scores, sums and output of one tile per thread; in bf16 also all keys and values, packed for AMX."""
    query, key = call.args[0], call.args[1]
    batch, heads, num_queries, width = map(int, query.shape)
    num_keys = int(key.shape[2])
    rows, columns = _tile(num_queries, num_keys)
    buffers = call.num_threads * (rows * columns + 2 * rows + rows * width) * 4
    if query.dtype not in _LOW:
        return buffers
    if not _packs_keys(query, num_keys, rows, call.num_threads):
        return buffers + call.num_threads * rows * columns * 2
    tail = (num_keys - 1) % columns + 1
    num_padded_keys = (num_keys - 1) // columns * _up(columns, 2) + _up(tail, 2)
    packed = batch * heads * width * (num_keys + num_padded_keys) * 2
    return buffers + packed + call.num_threads * (rows * _up(columns, 2) + columns * width) * 2


def _tile(num_queries: int, num_keys: int) -> tuple[int, int]:
    rows = 256 if num_queries >= 768 else 64 if num_queries >= 192 else 32  # the kernel's own steps
    return min(rows, num_queries), min(512, num_keys)


def _packs_keys(query: Tensor, num_keys: int, rows: int, num_threads: int) -> bool:
    """Whether keys are packed: in bf16 only if the products are worth the copy, with four times as many elements; in
    fp16 always or never.
    """
    batch_heads, num_queries = query.shape[0] * query.shape[1], query.shape[2]
    if query.dtype == torch.float16:
        return _multiplies_fp16()
    if query.dtype != torch.bfloat16 or min(num_queries, num_keys) < 64:  # the kernel's own threshold
        return False
    tiles_per_thread = math.ceil(batch_heads * math.ceil(num_queries / rows) / num_threads)
    return tiles_per_thread * rows / batch_heads >= 4


def _multiplies_fp16() -> bool:
    """Whether this processor has AMX for fp16 (Granite Rapids). Others widen fp16 to fp32."""
    return torch.cpu._is_amx_fp16_supported()


def _attention_backward(call: _Call) -> int:
    """Counts scores and their gradient of one tile per thread, also in low precision, and packed factors."""
    gradient, query, key = call.args[:3]
    rows, columns = _tile(query.shape[2], key.shape[2])
    total = 0 if gradient.transpose(1, 2).is_contiguous() else _num_bytes(gradient)
    total += call.num_threads * (2 * rows * columns + rows) * 4
    if query.dtype in _LOW:
        total += call.num_threads * 2 * rows * columns * 2
        is_widened = query.dtype == torch.float16 and not _multiplies_fp16()
        packed = _widened(rows, columns, 0, 1) if is_widened else (rows + query.shape[3]) * columns + 8192
        total += call.num_threads * packed
    return total


# ---- matrix products


def _product(call: _Call) -> int:
    """Counts the blocks of bf16 and fp16 matrices that oneDNN packs per thread, each about the size of the L2 cache.

    fp32 products use MKL, whose buffers are not torch's. oneDNN's choice of blocks follows no simple rule. This one is
    within a few hundred KiB for most shapes, and too high for some weights of more than 1.5 MiB: it assumes fp32 sums
    for the whole result, as most of them have.
    """
    left, right = call.args[-2:] if len(call.args) == 2 else call.args[1:3]  # without a bias, or with one
    if left.dtype not in _LOW:
        return 0
    rows, inner, columns = int(left.shape[-2]), int(left.shape[-1]), int(right.shape[-1])
    is_left_transposed = left.stride(-2) == 1 and left.stride(-1) != 1
    if left.dtype == torch.float16:
        return _widened(rows, inner, 0 if is_left_transposed else columns, call.num_threads)
    if is_left_transposed:
        return call.num_threads * _packed_left(rows, inner)
    if rows <= 16 and right.stride(-1) != 1:
        return call.num_threads * 65 * inner
    return _packed_right(rows, inner, columns, call.num_threads)


def _widened(rows: int, inner: int, columns_summed: int, num_threads: int) -> int:
    """fp16: blocks of both matrices in fp32, at most 1024 deep; deeper ones also hold sums of these columns."""
    depth = min(inner, 1024)
    per_row = 4 * depth + 260 + (4 * columns_summed if inner > depth else 0)
    own_rows = rows if rows < 64 else math.ceil(rows / num_threads)  # threads split the rows, if there are many
    block_rows = math.ceil(own_rows / math.ceil(own_rows / 256))
    return num_threads * (256 * depth + block_rows * per_row)


def _packed_left(rows: int, inner: int) -> int:
    """bf16: a transposed left matrix (for a weight's gradient) in blocks of 64 or 128 rows, at most 1500 deep."""
    per_row = 5 * min(rows, 64) // 2 + 6 * max(0, min(rows, 128) - 64)
    return min((150 + per_row) * min(inner, 1500), 800_000)


def _packed_right(rows: int, inner: int, columns: int, num_threads: int) -> int:
    """Counts the right matrix in blocks: of columns if it is flat, of rows with fp32 sums if it is deep."""
    sums = 0
    while 2 * inner * columns > 1.3 * _MIB or columns > 1152:  # half of the L2 cache
        if inner > 1600 and rows >= 256:
            sums, inner = 4 * rows * columns, math.ceil(inner / 2)
        else:
            columns = math.ceil(columns / 2)
    return sums + num_threads * (2 * inner * columns + 5120)


# ---- convolutions


def _convolution(call: _Call) -> int:
    """Counts image, weights and result in oneDNN's layout, then the result in the requested layout."""
    image, weight, stride = call.args[0], call.args[1], call.args[3]
    if not _is_onednn(image, weight, stride, call.num_threads):
        return 0
    result = call.results[0]
    scratch = call.num_threads * _forward_scratch(image, weight)
    if _is_channels_last(image, weight):
        copy = 0 if image.is_contiguous(memory_format=torch.channels_last) else _num_bytes(image)
        return copy + _num_bytes(weight) + _laid_out_weight(weight) + scratch
    copy = 0 if image.is_contiguous() else _num_bytes(image)
    laid_out = _laid_out(image) if image.shape[1] > 3 or image.dtype in _LOW else 0  # otherwise read as it is
    inside = scratch + laid_out + _laid_out_weight(weight) + _laid_out(result)
    after = _laid_out(result) + _num_bytes(result) * (2 if image.dtype in _LOW else 1)
    return copy + max(inside, after) - _num_bytes(result)


def _convolution_backward(call: _Call) -> int:
    """Counts the gradient of the image, then that of the weights; both read the gradient in oneDNN's layout."""
    gradient, image, weight, stride = call.args[0], call.args[1], call.args[2], call.args[4]
    wants_image, wants_weight, _ = call.args[10]
    if not _is_onednn(image, weight, stride, call.num_threads):
        return 0
    kept = _num_bytes(image) if wants_image else 0
    own = kept + (_num_bytes(weight) if wants_weight else 0)
    sums = _weight_sums(gradient, image, weight, call.num_threads) if wants_weight else 0
    if _is_channels_last(image, weight):
        copies = sum(
            0 if tensor.is_contiguous(memory_format=torch.channels_last) else _num_bytes(tensor)
            for tensor in (gradient, image)
        )
        copies += _num_bytes(weight)
        for_image = kept + _laid_out_weight(weight)
        for_weight = kept + _laid_out_weight(weight) + max(sums, 2 * _num_bytes(weight)) if wants_weight else 0
        return copies + max(for_image, for_weight) - own
    copies = sum(0 if tensor.is_contiguous() else _num_bytes(tensor) for tensor in (gradient, image))
    for_image = for_weight = 0
    if wants_image:
        is_twice_copied = image.dtype in _LOW or max(stride) > 1
        inside = _laid_out(gradient) + _laid_out_weight(weight) + _laid_out(image)
        inside += call.num_threads * _forward_scratch(image, weight)
        for_image = max(inside, _laid_out(image) + kept * (2 if is_twice_copied else 1))
    if wants_weight:
        read = 0 if image.dtype == torch.float16 else _laid_out(gradient) + _laid_out(image)
        for_weight = kept + read + _laid_out_weight(weight) + sums
    return copies + max(for_image, for_weight) - own


def _is_onednn(image: Tensor, weight: Tensor, stride: Sequence[int], num_threads: int) -> bool:
    """Whether oneDNN is used: fp32 1x1 convolutions bypass it if one thread works on a small batch."""
    is_by_pixel = math.prod(weight.shape[2:]) == 1 and max(stride) == 1
    return not (image.dtype == torch.float32 and is_by_pixel and num_threads == 1 and image.shape[0] < 16)


def _is_channels_last(image: Tensor, weight: Tensor) -> bool:
    return torch.channels_last in (suggest_memory_format(image), suggest_memory_format(weight))


def _laid_out(image: Tensor) -> int:
    """Returns bytes in oneDNN's layout. fp32: blocks of 16 channels. Low precision: channels last, without padding."""
    if image.dtype in _LOW:
        return _num_bytes(image)
    return _num_bytes(image) // image.shape[1] * _up(image.shape[1], 16)


def _laid_out_weight(weight: Tensor) -> int:
    block = 32 if weight.dtype == torch.bfloat16 else 16
    num_out, num_in = weight.shape[:2]
    if min(num_out, num_in) <= 3:  # the side with the colours is not padded
        return _num_bytes(weight)
    return _num_bytes(weight) // (num_out * num_in) * _up(num_out, block) * _up(num_in, block)


def _forward_scratch(image: Tensor, weight: Tensor) -> int:
    """Counts AMX's buffers: each thread reads padded rows of the image from one."""
    if image.dtype != torch.bfloat16:
        return 4096
    return 12_288 if math.prod(weight.shape[2:]) == 1 else 110_000


def _weight_sums(gradient: Tensor, image: Tensor, weight: Tensor, num_threads: int) -> int:
    """Counts sums: threads split the channels; if there are few, each sums all weights. AMX transposes inputs."""
    is_shared_out = weight.numel() > 100_000
    if image.dtype == torch.float32:
        return 0 if is_shared_out else (num_threads - 1) * _laid_out_weight(weight)
    if image.dtype == torch.float16:
        return _num_bytes(weight)
    transposed = _num_bytes(image) // image.shape[0] + _num_bytes(gradient) // gradient.shape[0]
    return 4 * weight.numel() * (1 if is_shared_out else num_threads) + num_threads * transposed


# ---- others


def _layer_norm(call: _Call) -> int:
    """Counts copies: rows are read contiguously, so other layouts are copied first."""
    return 0 if call.args[0].is_contiguous() else _num_bytes(call.args[0])


def _layer_norm_backward(call: _Call) -> int:
    gradient, values = call.args[:2]
    return sum(0 if tensor.is_contiguous() else _num_bytes(tensor) for tensor in (gradient, values))


def _group_norm(call: _Call) -> int:
    """Counts two sums per channel."""
    num_samples, num_channels = map(int, call.args[0].shape[:2])
    return 8 * num_samples * num_channels


def _nearest(call: _Call) -> int:
    """Counts copies: the kernel uses channels last, and converts both sides if needed."""
    image = call.args[0]
    if image.is_contiguous(memory_format=torch.channels_last):
        return 0
    return _num_bytes(image) + _num_bytes(call.results[0])


def _sum(call: _Call) -> int:
    """Counts a cast to fp32: for low precision if kept dimensions lie between reduced ones, or the result is wider."""
    values = call.args[0]
    if values.dtype not in _LOW:
        return 0
    gone = {
        dim % values.dim() for dim in (call.args[1] if len(call.args) > 1 and call.args[1] else range(values.dim()))
    }
    order = [d for d in sorted(range(values.dim()), key=values.stride, reverse=True) if values.shape[d] > 1]
    num_runs = sum(1 for i, d in enumerate(order) if d in gone and (i == 0 or order[i - 1] not in gone))
    return values.numel() * 4 if num_runs > 1 or call.results[0].dtype != values.dtype else 0


def _mean(call: _Call) -> int:
    return call.args[0].numel() * 4 if call.args[0].dtype in _LOW else 0


# ---- updates of bitsandbytes, which compute in fp32 whatever the weights are


def _in_fp32(call: _Call) -> tuple[int, int]:
    """Returns the bytes of a weight in fp32, and those of the fp32 copies of gradient and weight."""
    weight = call.args[2]
    num_bytes = 4 * weight.numel()
    return num_bytes, num_bytes + (num_bytes if weight.dtype != torch.float32 else 0)


def _update_8bit(call: _Call) -> int:
    """Counts the states in fp32, and AdamW's denominator or the argument of Lion's sign, with its temporaries."""
    num_bytes, copies = _in_fp32(call)
    num_states = 1 if call.args[4] is None else 2
    return copies + num_states * num_bytes + (2 if num_states == 2 else 3) * num_bytes


def _update_32bit(call: _Call) -> int:
    num_bytes, copies = _in_fp32(call)
    return copies + 2 * num_bytes


_RULES: dict[str, Callable[[_Call], int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "mm": _product,
    "addmm": _product,
    "bmm": _product,
    "baddbmm": _product,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm,
    "upsample_nearest2d": _nearest,
    "sum": _sum,
    "mean": _mean,
    "optimizer_update_8bit_blockwise": _update_8bit,
    "optimizer_update_32bit": _update_32bit,
}
