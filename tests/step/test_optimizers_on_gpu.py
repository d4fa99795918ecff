"""What differs on a GPU: where states and copies are, and that what comes back from the host is whole."""

import pytest
import torch
from torch import nn

from foretune.choices.training import Levers
from foretune.step.ema import MovingAverage
from foretune.step.optimizing import build_optimizer
from tests.step.test_optimizers import KINDS, choice, copied, give_gradients, made_weights

pytestmark = pytest.mark.gpu


def on_gpu(weights: list[nn.Parameter]) -> list[nn.Parameter]:
    return [nn.Parameter(weight.detach().cuda()) for weight in weights]


def gpu_gradients(weights: list[nn.Parameter], step: int) -> None:
    here = made_weights()
    give_gradients(here, step)
    for weight, source in zip(weights, here, strict=True):
        assert source.grad is not None
        weight.grad = source.grad.to(weight.device, weight.dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_host_is_near_on_the_device(kind: str) -> None:
    """The device's kernels round otherwise than the CPU's, so that they are near, not the same."""
    device, host = on_gpu(made_weights()), on_gpu(made_weights())
    plain = build_optimizer(choice(kind), device)
    moved = build_optimizer(choice(kind), host, levers=Levers(optimizer_offload=True))
    for step in range(3):
        for updater, weights in ((plain, device), (moved, host)):
            updater.set_lr(1e-2)
            gpu_gradients(weights, step)
            updater.step()
            updater.zero_grad(set_to_none=True)
    for one, other in zip(device, host, strict=True):
        assert all(tensor.device.type == "cpu" for tensor in moved.kept(other))
        # Signs of what is almost zero may differ: Lion then steps the other way.
        assert float((one - other).abs().median()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_the_update_on_the_host_does_not_depend_on_the_device(kind: str, dtype: torch.dtype) -> None:
    """The same CPU computes the update: only copies that are read too early make a difference."""
    cpu, gpu = made_weights(dtype), on_gpu(made_weights(dtype))
    updaters = [build_optimizer(choice(kind), weights, levers=Levers(optimizer_offload=True)) for weights in (cpu, gpu)]
    for step in range(3):
        for updater, weights in zip(updaters, (cpu, gpu), strict=True):
            updater.set_lr(1e-2)
            gpu_gradients(weights, step)
            updater.step()
    assert all(torch.equal(one, other.cpu()) for one, other in zip(cpu, gpu, strict=True))


def test_in_backward_is_the_same() -> None:
    found = []
    for levers in (Levers(), Levers(fused_backward=True)):
        layer = nn.Linear(64, 64).cuda()
        with torch.no_grad():
            for weight in layer.parameters():
                weight.fill_(0.01)
        updater = build_optimizer(choice("adamw"), layer.parameters(), levers=levers)
        for step in range(3):
            updater.set_lr(1e-2)
            inputs = torch.full((4, 64), 0.1 * (step + 1), device="cuda")
            layer(inputs).square().sum().backward()
            updater.step()
            updater.zero_grad(set_to_none=True)
        found.append([weight.detach().clone() for weight in layer.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_average_on_the_host() -> None:
    (weight, *_) = on_gpu(made_weights())
    averages = [MovingAverage({"w": weight}, 0.9, on_host=on_host) for on_host in (False, True)]
    for _ in range(3):
        with torch.no_grad():
            weight.add_(0.1)
        for average in averages:
            average.update()
    here, there = (average.average["w"] for average in averages)
    assert there.device.type == "cpu"
    assert not there.is_pinned()
    torch.testing.assert_close(here.cpu(), there)


@pytest.mark.real_gpu("CUDA's managed memory")
def test_paged_states_are_paged_and_come_back() -> None:
    """Below 100,000 numbers the library does not page."""
    weights = [[nn.Parameter(torch.ones(400, 400, device="cuda"))] for _ in range(2)]
    old, new = (build_optimizer(choice("paged-adamw8bit"), one) for one in weights)

    def run(index: int, steps: range) -> None:
        updater, (weight,) = (old, new)[index], weights[index]
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            updater.set_lr(1e-2)
            weight.grad = torch.randn(weight.shape, generator=generator).cuda()
            updater.step()

    run(0, range(2))
    ((first,), (second,)) = weights
    assert all(getattr(old.state[first][name], "is_paged", False) for name in ("state1", "state2"))
    with torch.no_grad():
        second.copy_(first)
    new.load(second, copied(old.save(first)))
    assert all(getattr(new.state[second][name], "is_paged", False) for name in ("state1", "state2"))
    run(0, range(2, 4))
    run(1, range(2, 4))
    assert torch.equal(first, second)
