"""The host's time to dispatch operators: Python, PyTorch's dispatcher and autograd, without the kernels' work."""

import time
from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from foretune.accelerator.timing import wait_for
from foretune.core.values.device_profile import Dispatch, KernelTime
from foretune.measure.calibration.rounds import spread_of

_WIDTH = 8
_HEADS = 2
_CALLS = 20
_MOST_SAMPLES = 200
_NUM_UPDATED = 100
_NUM_MEASURED = 7


class _TinyBlock(nn.Module):
    """A transformer block, so small that its kernels take no time."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        normed = self.before(x)
        q, k, v = (layer(normed).view(batch, tokens, _HEADS, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, _WIDTH)
        x = x + self.out(mixed)
        after: torch.Tensor = x + self.down(functional.gelu(self.up(self.between(x))))
        return after


class _Counting(TorchDispatchMode):
    """Counts what the host issues, views included, as recorded steps do."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_operators += 1
        return func(*args, **(kwargs or {}))


def measure_dispatch(device: torch.device, budget_s: float, now: Callable[[], float] = time.perf_counter) -> Dispatch:
    """Takes about the budget, shared by all that is measured."""
    share_s = budget_s / _NUM_MEASURED
    block = _TinyBlock().to(device)
    with_autograd, recomputed = _of_passes(block, device, share_s, now)
    left, right = (torch.randn(4, 4, device=device) for _ in range(2))

    def call() -> None:
        for _ in range(_CALLS):
            torch.mm(left, right)

    leaf = torch.randn(4, 4, device=device, requires_grad=True)
    with torch.enable_grad():
        out = leaf * 2
    gradient = torch.ones(4, 4, device=device)

    def backward() -> None:
        for _ in range(_CALLS):
            torch.autograd.grad(out, leaf, gradient, retain_graph=True)

    backwards = _samples(backward, device, share_s, now)
    with torch.no_grad():
        calls = _samples(call, device, share_s, now)
    update = _of_update(device, share_s, now)
    with_adapters, recomputed_with_adapters = _of_passes(_with_adapters(block), device, share_s, now)
    return Dispatch(
        call=KernelTime(min(calls) / _CALLS, spread_of(calls)),
        backward_call=KernelTime(min(backwards) / _CALLS, spread_of(backwards)),
        with_autograd=with_autograd,
        recomputed=recomputed,
        with_adapters=with_adapters,
        recomputed_with_adapters=recomputed_with_adapters,
        update=update,
    )


def _of_passes(
    block: nn.Module, device: torch.device, budget_s: float, now: Callable[[], float]
) -> tuple[KernelTime, KernelTime]:
    """Time of an operator in forward and backward passes, and in those of a block that is recomputed."""
    x = torch.randn(1, 4, _WIDTH, device=device, requires_grad=True)

    def kept() -> None:
        block(x).sum().backward()

    def recomputed() -> None:
        checkpoint(block, x, use_reentrant=False).sum().backward()

    with torch.enable_grad():
        return _per_operator(kept, device, budget_s, now), _per_operator(recomputed, device, budget_s, now)


def _per_operator(
    run: Callable[[], None], device: torch.device, budget_s: float, now: Callable[[], float]
) -> KernelTime:
    run()
    with _Counting() as counting:
        run()
    samples = _samples(run, device, budget_s, now)
    return KernelTime(min(samples) / counting.num_operators, spread_of(samples))


def _with_adapters(block: nn.Module) -> nn.Module:
    """The block with a LoRA on each of its layers, as a training has it: peft computes much of it in Python."""
    names = [name for name, module in block.named_modules() if isinstance(module, nn.Linear)]
    frozen = block.requires_grad_(requires_grad=False)
    adapted: nn.Module = inject_adapter_in_model(LoraConfig(r=2, target_modules=names), frozen)
    return adapted


def _of_update(device: torch.device, budget_s: float, now: Callable[[], float]) -> KernelTime:
    """Clipping gradients, AdamW and forgetting gradients, for each tensor: on a CPU they go from one to the next."""
    weights = [torch.randn(_WIDTH, device=device, requires_grad=True) for _ in range(_NUM_UPDATED)]
    optimizer = torch.optim.AdamW(weights, fused=True)
    gradients = [torch.randn(_WIDTH, device=device) for _ in weights]

    def update() -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    samples = _samples(update, device, budget_s, now)
    return KernelTime(min(samples) / _NUM_UPDATED, spread_of(samples))


def _samples(run: Callable[[], None], device: torch.device, budget_s: float, now: Callable[[], float]) -> list[float]:
    """Times of the host alone: it does not wait for the device before the clock is read."""
    for _ in range(5):
        run()
    found: list[float] = []
    # Autograd has a thread of its own for each device but the CPU.
    clock = time.thread_time if device.type == "cpu" else now
    deadline_s = now() + budget_s
    while len(found) < _MOST_SAMPLES and (now() < deadline_s or not found):
        wait_for(device)
        begin_s = clock()
        run()
        found.append(clock() - begin_s)
    return found
