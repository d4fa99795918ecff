"""One file a family: how it is built, what a step takes, what the loss is, how to sample."""

from foretune.core.registry import Registry
from foretune.models.family import Architecture, Conditioning, Family, TensorSpec

FAMILIES: Registry[type[Family]] = Registry(
    "model family",
    {
        "ddpm": "foretune.models.ddpm:Ddpm",
        "sd3": "foretune.models.sd3:StableDiffusion3",
        "flux": "foretune.models.flux:Flux",
    },
)

__all__ = ["FAMILIES", "Architecture", "Conditioning", "Family", "TensorSpec"]
