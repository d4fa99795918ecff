"""Stable Diffusion 1 and 2: a UNet with the text of one CLIP."""

from foretune.catalog import family_facts
from foretune.models.unet import TextToImageUNet


class StableDiffusion1(TextToImageUNet):
    """The original UNet; version 2 differs only in the width of the text."""

    facts = family_facts("sd1")
    default_text_tokens = 77
    text_is_fixed = True
