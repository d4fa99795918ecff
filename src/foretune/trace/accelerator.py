"""Imitates a CUDA device on CPU tensors where autograd sees it: autocast, fused attention and dropout.

Fake CPU tensors run the CPU's operators, which save other tensors for the backward pass than the device's do. Three
differences decide the memory of a step; each is imitated here above autograd.

Not imitated: a GPU computes `F.rms_norm` by one operator, and the CPU composes it of several. Where its weight is
trained, the composed one saves one more fp32 tensor. By arithmetic, plans of FLUX's full fine-tuning at 1024 px are
0.1 GiB too high with checkpointing of all blocks, and 6 GiB without.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from foretune.step.quantizing.compute_type import in_compute_type
from foretune.trace.operator_work import OperatorWork, attention_shape, dtype_name
from foretune.trace.recorder import Recorder

# The lists of torch.autocast("cuda"), as far as diffusion models use them. The CPU's lists are shorter: norms and sums
# stay in the low-precision dtype, which makes a third of the difference for SD3.5 without checkpointing.
_LOW_PRECISION = {
    F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm, torch.addmm,
    torch.baddbmm, torch.einsum, F.conv1d, torch.conv1d, F.conv2d, torch.conv2d, F.conv3d, torch.conv3d,
    in_compute_type,
}  # fmt: skip
_FULL_PRECISION = {
    F.layer_norm, torch.layer_norm, F.group_norm, torch.group_norm, F.rms_norm, torch.rms_norm, F.softmax,
    torch.softmax, Tensor.softmax, F.log_softmax, F.mse_loss, torch.sum, Tensor.sum, torch.prod, torch.pow, Tensor.pow,
    Tensor.__pow__, torch.rsqrt, Tensor.rsqrt, torch.exp, Tensor.exp, torch.log, Tensor.log, torch.cumsum,
    Tensor.cumsum, torch.norm, Tensor.norm, torch.reciprocal, torch.linalg.vector_norm,
}  # fmt: skip


class AcceleratorNumerics(TorchFunctionMode):
    """Active around a forward pass, and again around the recomputation of a checkpointed block."""

    def __init__(self, recorder: Recorder, autocast: torch.dtype | None) -> None:
        super().__init__()
        self._recorder, self._autocast = recorder, autocast
        # Autocast caches the low-precision copy of each trained fp32 weight until it exits.
        self._cast_weights: dict[int, Tensor] = {}

    def cast_weights(self) -> tuple[Tensor, ...]:
        """Returns the low-precision copies that autocast caches."""
        return tuple(self._cast_weights.values())

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func is F.dropout:
            return self._dropout(*args, **{("values" if name == "input" else name): v for name, v in kwargs.items()})
        target = self._target(func)
        if target is not None:
            args = tuple(self._cast(argument, target) for argument in args)
            kwargs = {name: self._cast(argument, target) for name, argument in kwargs.items()}
        return func(*args, **kwargs)

    def _target(self, func: Any) -> torch.dtype | None:
        if self._autocast is None:
            return None
        if func in _LOW_PRECISION:
            return self._autocast
        return torch.float32 if func in _FULL_PRECISION else None

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            return type(value)(self._cast(item, dtype) for item in value)
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype in (dtype, torch.float64):
            return value
        is_trained_weight = isinstance(value, nn.Parameter) and value.requires_grad and value.dtype == torch.float32
        if is_trained_weight and dtype == self._autocast:
            if id(value) not in self._cast_weights:
                self._cast_weights[id(value)] = value.to(dtype)
            return self._cast_weights[id(value)]
        return value.to(dtype)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if self._autocast is not None:
            query, key, value = (self._cast(tensor, self._autocast) for tensor in (query, key, value))
        key, value = key.to(query.dtype), value.to(query.dtype)
        if _only_math_is_allowed():
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.empty(attn_mask.shape, dtype=query.dtype)  # the kernel takes additive masks
        is_flat = query.dim() == 3  # noqa: PLR2004 - one head
        if is_flat:
            query, key, value = query[None], key[None], value[None]
        out: Tensor = _FusedAttention.apply(query, key, value, attn_mask, self._recorder)  # type: ignore[no-untyped-call]
        return out[0] if is_flat else out

    def _dropout(self, values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or not 0 < p < 1:
            return values
        out: Tensor = _FusedDropout.apply(values, self._recorder)  # type: ignore[no-untyped-call]
        return out


class _FusedAttention(torch.autograd.Function):
    """Saves q, k, v, the output and one value per row; the backward pass accumulates dq in fp32.

    The kernel pads the rows of its sums to 128. This is ignored, so that bytes grow linearly with the tokens.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, recorder: Recorder) -> Tensor:
        batch, heads, rows, width = query.shape
        out = torch.empty(batch, rows, heads, value.shape[-1], dtype=query.dtype).transpose(1, 2)
        row_sums = torch.empty(batch, heads, rows, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, row_sums, mask)
        ctx.recorder = recorder
        flops = 4 * batch * heads * rows * key.shape[2] * width
        recorder.charge(_attention_work(query, key, flops, (query, key, value, out)), is_masked=mask is not None)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, _, mask = ctx.saved_tensors
        (gradient,) = gradients
        batch, heads, rows, width = query.shape
        if not gradient.transpose(1, 2).is_contiguous() and not gradient.is_contiguous():
            gradient = gradient.contiguous()
        sums = torch.empty(batch, heads, rows, width, dtype=torch.float32)
        deltas = torch.empty(batch, heads, rows, dtype=torch.float32)
        needed = [
            _like_transposed(tensor) if wanted else None
            for tensor, wanted in zip((query, key, value), ctx.needs_input_grad, strict=False)
        ]
        flops, read = 10 * batch * heads * rows * key.shape[2] * width, (query, key, value, out)
        ctx.recorder.charge(_attention_work(query, key, flops, (*read, *read)), is_masked=mask is not None)
        del sums, deltas
        return (*needed, None, None)


class _FusedDropout(torch.autograd.Function):
    """Saves one byte per element."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, recorder: Recorder) -> Tensor:
        ctx.save_for_backward(torch.empty(values.shape, dtype=torch.bool))
        ctx.recorder = recorder
        recorder.charge(_dropout_work(values))
        return torch.empty_like(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        ctx.recorder.charge(_dropout_work(gradient))
        return torch.empty_like(gradient), None


def _attention_work(query: Tensor, key: Tensor, flops: int, moved: tuple[Tensor, ...]) -> OperatorWork:
    bytes_by_tensor = tuple(tensor.numel() * tensor.element_size() for tensor in moved)
    return OperatorWork("attention", dtype_name(query.dtype), flops, bytes_by_tensor, attention_shape(query, key))


def _dropout_work(values: Tensor) -> OperatorWork:
    num_bytes = values.numel() * values.element_size()
    return OperatorWork("pointwise", dtype_name(values.dtype), 0, (num_bytes, num_bytes), ())


def workspace_bytes(func: Any, _args: tuple[Any, ...], results: list[Tensor]) -> int:
    """Returns the temporaries inside an operator that torch composes of others, which a recorder sees as one.

    The softmax of the math backend looks for rows that are masked throughout: it has one byte for each score.
    """
    return results[0].numel() if func is torch.ops.aten._safe_softmax.default else 0


def _only_math_is_allowed() -> bool:
    """Whether attention must use the math backend, which consists of the same operators on every device."""
    allowed = torch.backends.cuda
    fused = (allowed.flash_sdp_enabled(), allowed.mem_efficient_sdp_enabled(), allowed.cudnn_sdp_enabled())
    return allowed.math_sdp_enabled() and not any(fused)


def _like_transposed(tensor: Tensor) -> Tensor:
    batch, heads, rows, width = tensor.shape
    return torch.empty(batch, rows, heads, width, dtype=tensor.dtype).transpose(1, 2)
