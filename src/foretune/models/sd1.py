"""Stable Diffusion 1 and 2: a UNet that reads one CLIP's text."""

from foretune.catalog import family_facts
from foretune.models.unet import TextToImageUNet


class StableDiffusion1(TextToImageUNet):
    """The UNet that started it; version 2 differs in the width of the text alone."""

    facts = family_facts("sd1")
    default_text_tokens = 77
    text_is_fixed = True
