"""One file per model family: how to build it, the inputs of a step, the loss, and sampling.

Families that cannot be trained yet are included, because their architecture determines what a step needs.
"""

from foretune.core.registry import Registry
from foretune.models.family import Architecture, Conditioning, Family, RepeatedBlocks, TensorSpec

FAMILIES: Registry[type[Family]] = Registry(
    "model family",
    {
        "auraflow": "foretune.models.auraflow:AuraFlow",
        "chroma": "foretune.models.chroma:Chroma",
        "cogvideox": "foretune.models.cogvideox:CogVideoX",
        "ddpm": "foretune.models.ddpm:Ddpm",
        "dit": "foretune.models.dit:Dit",
        "flux": "foretune.models.flux:Flux",
        "flux2": "foretune.models.flux2:Flux2",
        "hidream": "foretune.models.hidream:HiDream",
        "hunyuan_video": "foretune.models.hunyuan_video:HunyuanVideo",
        "hunyuan_video15": "foretune.models.hunyuan_video15:HunyuanVideo15",
        "kolors": "foretune.models.kolors:Kolors",
        "krea2": "foretune.models.krea2:Krea2",
        "ltx_video": "foretune.models.ltx_video:LtxVideo",
        "lumina2": "foretune.models.lumina2:Lumina2",
        "mochi": "foretune.models.mochi:Mochi",
        "pixart": "foretune.models.pixart:PixArt",
        "qwen_image": "foretune.models.qwen_image:QwenImage",
        "sana": "foretune.models.sana:Sana",
        "sd1": "foretune.models.sd1:StableDiffusion1",
        "sd3": "foretune.models.sd3:StableDiffusion3",
        "sdxl": "foretune.models.sdxl:StableDiffusionXl",
        "wan": "foretune.models.wan:Wan",
        "z_image": "foretune.models.z_image:ZImage",
    },
)

__all__ = ["FAMILIES", "Architecture", "Conditioning", "Family", "RepeatedBlocks", "TensorSpec"]
