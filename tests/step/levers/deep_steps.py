"""Steps of tiny models of any depth, with all adapter weights away from zero, so that gradients reach everything."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretune.models.locating import open_family
from foretune.step.building import assemble, build_step
from foretune.step.methods import METHODS
from foretune.step.precision import PrecisionPolicy
from tests.step.small_steps import CPU, SmallStep, made_batch, small_experiment

LORA = {"kind": "lora", "rank": 2}
DROPPING = {**LORA, "dropout": 0.3}
Gradients = dict[str, Tensor | None]


def deep_step(
    folder: Path,
    depths: tuple[int, ...],
    method: str | dict[str, Any] = "full",
    *,
    device: torch.device = CPU,
    **sections: Any,
) -> SmallStep:
    """A step of the family in a folder, at other depths if any are given, with new weights, placed as a run
    places them.
    """
    experiment = small_experiment(method, **sections)
    family = open_family(folder).with_depths(depths) if depths else open_family(folder)
    dtype = METHODS[experiment.method.kind].load_dtype(PrecisionPolicy.of(experiment.train))
    torch.manual_seed(0)
    denoiser: Any = family.denoiser_class()(**family.architecture.denoiser)
    nn.Module.to(denoiser, dtype)
    assembled = assemble(experiment, family, denoiser)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in assembled.method.trained().values() if experiment.method.kind != "full" else ():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    assembled.levers.place(denoiser, device)
    return SmallStep(experiment, family, assembled.method, build_step(experiment, family, assembled, device))


def loss_and_gradients(small: SmallStep, size: int = 2) -> tuple[float, Gradients]:
    """Of one forward and backward pass as a step makes it; None is the gradient of a weight that none reaches."""
    device = next(iter(small.step.trained.values())).device
    torch.manual_seed(3)
    with small.step.around_forward():
        loss = small.step.loss(made_batch(small.family, size, device=str(device)))
    loss.backward()
    return float(loss.detach()), {name: parameter.grad for name, parameter in small.step.trained.items()}


def assert_equal(found: tuple[float, Gradients], expected: tuple[float, Gradients]) -> None:
    """Bit by bit."""
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    assert any(gradient is not None and gradient.count_nonzero() for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        other = found[1][name]
        assert (gradient is None) == (other is None), name
        assert gradient is None or other is None or torch.equal(gradient, other), name


def difference(found: tuple[float, Gradients], expected: tuple[float, Gradients]) -> tuple[float, float]:
    """Of the losses, and of all gradients by their norm; both relative."""
    pairs = [(found[1][name], gradient) for name, gradient in expected[1].items() if gradient is not None]
    apart = sum(float((a - b).double().square().sum()) for a, b in pairs if a is not None)
    whole = sum(float(b.double().square().sum()) for _, b in pairs)
    return abs(found[0] - expected[0]) / abs(expected[0]), (apart / whole) ** 0.5
