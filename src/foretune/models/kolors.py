"""Kolors: the UNet of Stable Diffusion XL with text from a language model."""

from foretune.catalog import family_facts
from foretune.choices.training import ObjectiveChoice
from foretune.models.objectives import Epsilon, Objective
from foretune.models.sdxl import StableDiffusionXl


class Kolors(StableDiffusionXl):
    """A wider projection before the cross-attention, and a longer noise schedule."""

    facts = family_facts("kolors")
    default_text_tokens = 256
    text_is_fixed = True

    def objective(self, choice: ObjectiveChoice) -> Objective:
        return Epsilon(
            num_levels=int(self._scheduler_value("num_train_timesteps", 1100)),
            beta_start=self._scheduler_value("beta_start", 0.00085),
            beta_end=self._scheduler_value("beta_end", 0.014),
            beta_schedule="scaled_linear",
        )
