"""Kolors: the UNet of Stable Diffusion XL with text from a language model."""

from foretune.catalog import family_facts
from foretune.choices.training import ObjectiveChoice
from foretune.models.objectives import Objective, denoising
from foretune.models.unet import SizedUNet


class Kolors(SizedUNet):
    """A wider projection before the cross-attention, and a longer noise schedule."""

    facts = family_facts("kolors")
    default_text_tokens = 256

    def objective(self, choice: ObjectiveChoice) -> Objective:
        return denoising(
            self.architecture.scheduler, beta_schedule="scaled_linear", betas=(0.00085, 0.014), num_levels=1100
        )
