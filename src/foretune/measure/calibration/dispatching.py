"""The host's time to dispatch operators: Python, PyTorch's dispatcher and autograd, without the kernels' work."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from foretune.core.values.device_profile import Dispatch, KernelTime
from foretune.measure.calibration.rounds import spread_of
from foretune.measure.peak import wait_for

_WIDTH = 8
_HEADS = 2
_CALLS = 20
_MOST_SAMPLES = 200


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
    """Takes at most a third of the budget for each of the three."""
    block, x = _TinyBlock().to(device), torch.randn(1, 4, _WIDTH, device=device, requires_grad=True)

    def forward_and_backward() -> None:
        block(x).sum().backward()

    with torch.enable_grad():
        forward_and_backward()
        with _Counting() as counting:
            forward_and_backward()
        steps = _samples(forward_and_backward, device, budget_s / 3, now)
    number = counting.num_operators
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

    backwards = _samples(backward, device, budget_s / 3, now)
    with torch.no_grad():
        calls = _samples(call, device, budget_s / 3, now)
    return Dispatch(
        call=KernelTime(min(calls) / _CALLS, spread_of(calls)),
        backward_call=KernelTime(min(backwards) / _CALLS, spread_of(backwards)),
        with_autograd=KernelTime(min(steps) / number, spread_of(steps)),
    )


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
