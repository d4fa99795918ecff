"""Model families: one row for each, with what is known of it without torch.

Layers below `models` ask these rows by fact, never by a family's name. The class of a family is in `models/<name>.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from foretune.core.errors import UnknownName


@dataclass(frozen=True, kw_only=True)
class FamilyFacts:
    """What holds for every model of a family. Defaults are those of a transformer on latents that reads captions."""

    name: str
    """As in the catalogue's rows of denoisers, and the name of its module in `models`."""
    pipeline_class_name: str
    """Class of its pipeline in diffusers, as in a checkpoint's model_index.json."""
    is_trainable: bool = False
    """Whether it can be trained. All others can be planned, because a plan needs the architecture only."""
    has_text: bool = True
    """Whether its models read captions."""
    text_is_fixed: bool = False
    """Whether captions are always padded to the same number of tokens."""
    has_latents: bool = True
    """Whether its models work on the latents of an autoencoder; the others work on pixels."""
    is_unet: bool = False
    """Whether the denoiser is a UNet: convolutions, skip connections between blocks, no stacks of equal blocks."""
    is_mostly_convolutions: bool = False
    """Whether more weights are in convolutions than in linear layers, which are all that quantisation changes."""
    has_feed_forwards: bool = True
    """Whether some of its blocks have a feed-forward part."""
    is_small: bool = False
    """Whether its models have so few weights and pixels that experiments start with large batches, without gradient
    checkpointing and without caches."""
    is_video: bool = False
    """Whether its models make clips: latents have a dimension for frames, also for a single image."""
    keeps_fp32: bool = False
    """Whether the denoiser's class keeps some weights of its blocks in fp32 when it is loaded in 16 bits."""
    untrainable_models: tuple[str, ...] = ()
    """Models of a trainable family that can only be planned, by catalogue name: one of two denoisers of a pipeline, or
    a checkpoint for another pipeline."""
    fps: int = 16
    """Frames per second of the clips that a video family was trained on, at which samples are shown."""
    image_pipeline_class_name: str | None = None
    """Class of the pipeline of those of its models that continue a given first frame; None if there are none."""
    is_flow_matching: bool = True
    """Whether it is trained on straight paths from data to noise; the others predict noise or velocity at one of a
    number of levels."""
    starting_px: int | str | None = 1024
    """Resolution that experiments start with; None leaves it to the checkpoint, because those of a family differ."""
    starting_frames: int | None = None
    """Frames of a clip that experiments start with; None leaves it to the checkpoint."""
    guides_in_one_batch: bool = False
    """Whether its pipeline passes both halves of classifier-free guidance to the denoiser in one batch."""
    guides_in_two_passes: bool = False
    """Whether its pipeline passes them one after the other. The remaining pipelines need only one pass."""
    unguided_scale: float = 1.0
    """Largest guidance scale at which its pipeline runs the denoiser once in each step."""
    upcasts_autoencoder_in_fp16: bool = False
    """Whether its pipeline decodes in fp32 where it computes in fp16, in which its autoencoder overflows."""
    guidance_embeds_tell_distillation: bool = False
    """Whether a denoiser without a guidance embedding is distilled to few sampling steps, and one with it is not."""
    tiny_variants: tuple[str, ...] = ()
    """Variants of the tiny pipeline that `models/tiny/<name>.py` builds, the default first; empty if there is none."""

    @property
    def pipeline_class_names(self) -> tuple[str, ...]:
        """Classes of the pipelines of its models."""
        names = (self.pipeline_class_name, self.image_pipeline_class_name)
        return tuple(name for name in names if name is not None)

    @property
    def denoiser_part(self) -> str:
        """Folder of the denoiser in the diffusers layout, and its name in the pipeline."""
        return "unet" if self.is_unet else "transformer"


_ROWS = (
    # Those that can be trained, in the order of the capability matrix.
    FamilyFacts(
        name="ddpm",
        pipeline_class_name="DDPMPipeline",
        is_trainable=True,
        has_text=False,
        has_latents=False,
        is_unet=True,
        is_mostly_convolutions=True,
        has_feed_forwards=False,
        is_small=True,
        is_flow_matching=False,
        starting_px=32,
        tiny_variants=("cifar10",),
    ),
    FamilyFacts(
        name="sd3",
        pipeline_class_name="StableDiffusion3Pipeline",
        is_trainable=True,
        guides_in_one_batch=True,
        tiny_variants=("3.5", "3"),
    ),
    FamilyFacts(
        name="flux",
        pipeline_class_name="FluxPipeline",
        is_trainable=True,
        guidance_embeds_tell_distillation=True,
        tiny_variants=("dev", "schnell"),
    ),
    FamilyFacts(
        name="ovis_image",
        pipeline_class_name="OvisImagePipeline",
        is_trainable=True,
        guides_in_two_passes=True,
        tiny_variants=("7b",),
    ),
    FamilyFacts(
        name="sd1",
        pipeline_class_name="StableDiffusionPipeline",
        is_trainable=True,
        text_is_fixed=True,
        is_unet=True,
        is_mostly_convolutions=True,
        is_flow_matching=False,
        starting_px=None,
        guides_in_one_batch=True,
        tiny_variants=("1.5", "2.1"),
    ),
    FamilyFacts(
        name="sdxl",
        pipeline_class_name="StableDiffusionXLPipeline",
        is_trainable=True,
        text_is_fixed=True,
        is_unet=True,
        is_flow_matching=False,
        starting_px=None,
        guides_in_one_batch=True,
        upcasts_autoencoder_in_fp16=True,
        tiny_variants=("1.0",),
    ),
    FamilyFacts(
        name="pixart",
        pipeline_class_name="PixArtSigmaPipeline",
        is_trainable=True,
        is_flow_matching=False,
        starting_px=None,
        guides_in_one_batch=True,
        tiny_variants=("sigma",),
    ),
    FamilyFacts(
        name="wan",
        pipeline_class_name="WanPipeline",
        image_pipeline_class_name="WanImageToVideoPipeline",
        is_trainable=True,
        guides_in_two_passes=True,
        is_video=True,
        keeps_fp32=True,
        untrainable_models=("wan2.2-a14b-t2v-expert", "wan2.2-a14b-i2v-expert"),
        starting_px="416x256",
        starting_frames=33,
        tiny_variants=("2.1-t2v", "2.1-i2v"),
    ),
    FamilyFacts(
        name="hunyuan_video",
        pipeline_class_name="HunyuanVideoPipeline",
        is_trainable=True,
        is_video=True,
        fps=24,
        starting_px="416x240",
        starting_frames=33,
        tiny_variants=("1.0",),
    ),
    FamilyFacts(
        name="mochi",
        pipeline_class_name="MochiPipeline",
        is_trainable=True,
        is_video=True,
        fps=30,
        starting_px="416x240",
        starting_frames=31,
        guides_in_one_batch=True,
        tiny_variants=("1",),
    ),
    FamilyFacts(
        name="ltx_video",
        pipeline_class_name="LTXPipeline",
        is_trainable=True,
        is_video=True,
        untrainable_models=("ltx-video-13b",),
        fps=25,
        starting_px="768x512",
        starting_frames=49,
        guides_in_one_batch=True,
        tiny_variants=("0.9",),
    ),
    FamilyFacts(
        name="chroma",
        pipeline_class_name="ChromaPipeline",
        is_trainable=True,
        guides_in_two_passes=True,
        tiny_variants=("1",),
    ),
    FamilyFacts(
        name="lumina2",
        pipeline_class_name="Lumina2Pipeline",
        is_trainable=True,
        guides_in_two_passes=True,
        tiny_variants=("2.0",),
    ),
    FamilyFacts(
        name="qwen_image",
        pipeline_class_name="QwenImagePipeline",
        is_trainable=True,
        guides_in_two_passes=True,
        tiny_variants=("1",),
    ),
    FamilyFacts(
        name="z_image",
        pipeline_class_name="ZImagePipeline",
        is_trainable=True,
        guides_in_one_batch=True,
        unguided_scale=0.0,
        tiny_variants=("base",),
    ),
    # Those that can be planned.
    FamilyFacts(name="auraflow", pipeline_class_name="AuraFlowPipeline", guides_in_one_batch=True),
    FamilyFacts(
        name="cogvideox",
        pipeline_class_name="CogVideoXPipeline",
        is_video=True,
        text_is_fixed=True,
        is_flow_matching=False,
        guides_in_one_batch=True,
    ),
    FamilyFacts(
        name="dit",
        pipeline_class_name="DiTPipeline",
        has_text=False,
        is_flow_matching=False,
        guides_in_one_batch=True,
    ),
    FamilyFacts(name="flux2", pipeline_class_name="Flux2Pipeline"),
    FamilyFacts(name="hidream", pipeline_class_name="HiDreamImagePipeline", guides_in_one_batch=True),
    FamilyFacts(name="hunyuan_video15", pipeline_class_name="HunyuanVideo15Pipeline", is_video=True),
    FamilyFacts(
        name="kolors",
        pipeline_class_name="KolorsPipeline",
        text_is_fixed=True,
        is_unet=True,
        is_flow_matching=False,
        guides_in_one_batch=True,
        upcasts_autoencoder_in_fp16=True,
    ),
    FamilyFacts(name="krea2", pipeline_class_name="Krea2Pipeline", keeps_fp32=True),
    FamilyFacts(name="sana", pipeline_class_name="SanaPipeline", guides_in_one_batch=True),
)

FAMILY_FACTS: Mapping[str, FamilyFacts] = MappingProxyType({row.name: row for row in _ROWS})
"""Every family by name."""
TRAINABLE: Mapping[str, FamilyFacts] = MappingProxyType({row.name: row for row in _ROWS if row.is_trainable})
"""Those that can be trained."""


def family_facts(name: str) -> FamilyFacts:
    """The row of that family; an unknown one is answered with the nearest."""
    if name not in FAMILY_FACTS:
        raise UnknownName("model family", name, FAMILY_FACTS)
    return FAMILY_FACTS[name]


def family_of_pipeline(pipeline_class_name: str) -> str | None:
    """The trainable family whose checkpoints name this pipeline class."""
    return next((name for name, row in TRAINABLE.items() if pipeline_class_name in row.pipeline_class_names), None)
