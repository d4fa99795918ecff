"""The loss of each sample, used for training and for evaluation."""

from collections.abc import Callable

from torch import Tensor, nn

from foretune.data.batch import Batch
from foretune.models.family import Family
from foretune.models.objectives import Objective
from foretune.step.precision import PrecisionPolicy


def sample_losses(
    denoiser: nn.Module,
    batch: Batch,
    *,
    family: Family,
    objective: Objective,
    policy: PrecisionPolicy,
    guidance_scale: float,
    finish: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Returns the weighted squared error of the prediction per sample, or `finish` of these errors.

    `finish` runs here, while the sample is still in memory: a plan depends on what is in memory at each moment.
    """
    clean = clean_sample(family, batch)
    level = objective.noise_level(batch.uniform)
    noisy = objective.noisy(clean, batch.noise, level)
    target = objective.target(clean, batch.noise, level)
    compute = policy.compute_dtype
    conditioning = {
        name: t.to(compute) if t.is_floating_point() else t for name, t in (batch.conditioning or {}).items()
    }
    with policy.autocast(clean.device.type):
        predicted = family.predict(
            denoiser,
            noisy.to(compute),
            objective.time(level),
            conditioning,
            guidance_scale=guidance_scale,
        )
    error = (predicted.float() - target).square().flatten(1).mean(dim=1)
    if finish is None:
        return objective.weight(level) * error
    return finish(objective.weight(level) * error)


def clean_sample(family: Family, batch: Batch) -> Tensor:
    """Returns the clean sample: pixels, or latents drawn from their distribution."""
    if not family.has_latents:
        assert batch.images is not None, "a model without latents trains on images"
        return batch.images
    assert batch.moments is not None, "latents are encoded before the step"
    assert batch.posterior_noise is not None, "latents are drawn from a distribution"
    return family.latents_from_moments(batch.moments, batch.posterior_noise)
