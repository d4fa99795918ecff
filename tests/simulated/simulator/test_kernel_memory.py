"""Temporaries that CUDA kernels allocate: fp32 sums in attention's backward pass, none in bitsandbytes."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.simulated

KIB = 2**10


def peak_beside_results_bytes(compute: Callable[[], Any]) -> int:
    """The most that a computation allocates and frees again."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    result = compute()
    peak_bytes = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del result
    return peak_bytes


@pytest.mark.parametrize(
    ("kernel", "dtype", "padded_rows", "padded_width"),
    [
        ("flash", "bfloat16", 256, 64),
        ("efficient", "bfloat16", 192, 64),
        ("efficient", "float32", 130, 40),
    ],
)
def test_attention_sums_the_querys_gradient_in_fp32(
    simulated_gpu: Any, kernel: str, dtype: str, padded_rows: int, padded_width: int
) -> None:
    import torch

    batch, heads, rows, width = 2, 3, 130, 40
    shape = (batch, heads, rows, width)
    q, k, v, out, grad = (torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for _ in range(5))
    logsumexp = torch.randn(batch, heads, rows, device="cuda")
    seed = torch.zeros((), dtype=torch.long, device="cuda")

    def backward() -> Any:
        if kernel == "flash":
            return torch.ops.aten._scaled_dot_product_flash_attention_backward(
                grad, q, k, v, out, logsumexp, None, None, rows, rows, 0.0, False, seed, seed
            )
        return torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            grad, q, k, v, None, out, logsumexp, seed, seed, 0.0, [True, True, True, False]
        )

    sums_bytes = batch * heads * padded_rows * padded_width * 4
    deltas_bytes = batch * heads * padded_rows * 4
    rounded = [-(-num_bytes // 512) * 512 for num_bytes in (sums_bytes, deltas_bytes)]
    assert peak_beside_results_bytes(backward) == sum(rounded)


def test_kernels_of_bitsandbytes_have_no_temporaries_on_the_device(
    simulated_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bitsandbytes.functional as F
    import torch

    monkeypatch.setattr(torch._dynamo.config, "disable", True)  # it would compile its CPU kernels
    weight = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
    packed, state = F.quantize_4bit(weight, quant_type="nf4")
    # One more than the result: blocks of 512 bytes for what Python holds for a moment.
    assert peak_beside_results_bytes(lambda: F.dequantize_4bit(packed, state)) < KIB


def test_softmax_of_the_math_backend_has_a_byte_for_each_score(simulated_gpu: Any) -> None:
    """torch composes it of other operators; a plan counts the largest temporary."""
    import torch

    from foretune.trace.accelerator import workspace_bytes

    scores = torch.randn(2, 3, 128, 256, device="cuda")
    softmax = torch.ops.aten._safe_softmax.default
    planned_bytes = workspace_bytes(softmax, (scores, -1), [scores])
    num_rows = 2 * 3 * 128
    found_bytes = peak_beside_results_bytes(lambda: softmax(scores, -1))
    assert planned_bytes == scores.numel()
    assert planned_bytes + num_rows <= found_bytes < planned_bytes + num_rows + KIB
