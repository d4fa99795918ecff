"""Training steps on tiny models, and batches made of noise for them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foretune.choices.experiment import Experiment
from foretune.data.batch import Batch
from foretune.models import Family
from foretune.models.family import GUIDE, TensorSpec
from foretune.models.locating import open_family
from foretune.models.trainable import TrainableFamily
from foretune.step.building import assemble, build_step
from foretune.step.methods import METHODS, AppliedMethod
from foretune.step.precision import PrecisionPolicy
from foretune.step.training_step import TrainingStep
from tests.models.made_inputs import latent_shape, small_size

CPU = torch.device("cpu")
NUM_TEXT_TOKENS = 12
SIDE_PX = 32


@dataclass(frozen=True)
class SmallStep:
    """A training step and what it was built of."""

    experiment: Experiment
    family: TrainableFamily
    method: AppliedMethod
    step: TrainingStep


def small_experiment(method: str | dict[str, Any] = "full", **sections: Any) -> Experiment:
    """An experiment in fp32 unless a section says otherwise; what it names as model and data is not looked at."""
    train = {"steps": 10, "precision": "fp32", **sections.pop("train", {})}
    return Experiment.model_validate(
        {
            "model": "owner/tiny",
            "method": {"kind": method} if isinstance(method, str) else method,
            "data": {"kind": "shapes"},
            "train": train,
            **sections,
        }
    )


def small_step(folder: Path, method: str | dict[str, Any] = "full", **sections: Any) -> SmallStep:
    """The step of an experiment on the model in a folder, as a run builds it."""
    experiment = small_experiment(method, **sections)
    family = open_family(folder)
    policy = PrecisionPolicy.of(experiment.train)
    denoiser = family.load_denoiser(folder, METHODS[experiment.method.kind].load_dtype(policy))
    assembled = assemble(experiment, family, denoiser)
    return SmallStep(experiment, family, assembled.method, build_step(experiment, family, assembled, CPU))


def made_batch(family: Family, size: int, *, seed: int = 0, device: str = "cpu") -> Batch:
    """A batch of noise with everything a step of this family takes."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    def made(spec: TensorSpec) -> torch.Tensor:
        # The first sample has the longest caption.
        if spec.dtype == torch.bool:
            return (torch.arange(spec.shape[1]) < spec.shape[1] - torch.arange(size)[:, None]).to(device)
        return noise(*spec.shape)

    def guide(latent: tuple[int, ...]) -> dict[str, torch.Tensor]:
        channels = family.num_guide_channels()
        return {GUIDE: noise(size, channels, *latent[1:])} if channels else {}

    latent = latent_shape(family, small_size(family, SIDE_PX, SIDE_PX))
    num_tokens = family.own_text_tokens() if family.text_is_fixed else NUM_TEXT_TOKENS
    specs = family.conditioning_specs(size, num_tokens)
    uniform = torch.rand(size, generator=generator, dtype=torch.float64)
    return Batch(
        step=0,
        micro=0,
        indices=tuple(range(size)),
        captions=("",) * size,
        images=None if family.has_latents else noise(size, *latent),
        moments=noise(size, 2 * latent[0], *latent[1:]) if family.has_latents else None,
        conditioning={name: made(spec) for name, spec in specs.items()} | guide(latent) or None,
        noise=noise(size, *latent),
        posterior_noise=noise(size, *latent) if family.has_latents else None,
        uniform=uniform.to(device),
    )


def split_batch(batch: Batch, size: int) -> list[Batch]:
    """The batch in pieces of so many samples."""

    def piece(start: int) -> Batch:
        def cut(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: cut(tensor) for name, tensor in value.items()}
            return value if value is None or isinstance(value, int) else value[start : start + size]

        return Batch(**{name: cut(value) for name, value in vars(batch).items()})

    return [piece(start) for start in range(0, len(batch), size)]


def gradients(step: TrainingStep, batch: Batch) -> dict[str, torch.Tensor]:
    """The gradient of each trained weight; the weights are left without one."""
    step.loss(batch).backward()
    found = {}
    for name, parameter in step.trained.items():
        assert parameter.grad is not None, name
        found[name] = parameter.grad
        parameter.grad = None
    return found
