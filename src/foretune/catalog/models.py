"""Model components: denoisers and what runs beside them, with sizes, configurations and sources."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from foretune.catalog.families import FamilyFacts, family_facts
from foretune.catalog.rows import DATA_DIR, NAME_PATTERN, Row, doubles, raise_all, read_json, validated
from foretune.core.errors import UnknownName
from foretune.core.names import Names

Role = Literal["denoiser", "vae", "text_encoder", "image_encoder", "controlnet"]
Distillation = Literal["none", "guidance", "timestep"]

Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(gt=0)]


class LoraSize(Row):
    """Trainable LoRA parameters for each unit of rank: multiply by the rank."""

    attn_qkvo: Count
    """Adapters on the linear modules named to_q, to_k, to_v and to_out.0."""
    all_linear: Count
    """Adapters on every linear module."""
    num_attn_qkvo_modules: Count


class System(Row):
    """What a denoiser runs beside, by catalogue name."""

    vae: Text | None
    """None: the denoiser works on pixels."""
    text_encoders: tuple[Text, ...]
    image_encoder: Text | None
    not_in_catalogue: tuple[Text, ...]
    """Further parts that have no row here, so that their size is not known."""


class ComponentSource(Row):
    """Where each part of a row is from."""

    class_code: Text
    config: Text
    cross_check: Text | None
    """What else agrees with the row; None if nothing was found."""
    num_params: Text


class ModelComponent(Row):
    """One network. Counts are exact for its configuration, made by building it without weights."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    role: Role
    family: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")] | None
    """Denoisers of one family share class, inputs and objective; None for everything else."""
    library: Literal["diffusers", "transformers"]
    class_name: Text
    hub_repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")] | None
    hub_subfolder: Text | None
    hub_revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None
    num_params: PositiveCount
    """Elements of all parameters; buffers not counted."""
    num_linear_weight_params: Count
    """Elements of linear layers' weights: what weight quantisation touches."""
    num_linear_layers: Count
    num_conv_weight_params: Count
    num_persistent_buffer_elements: Count
    """Elements of buffers that a checkpoint stores beside the parameters."""
    lora_params_per_rank: LoraSize | None
    num_blocks: PositiveCount | None
    """Repeated blocks of the main stack, double and single stream together, refiners not; None for UNets."""
    hidden_size: PositiveCount | None
    tokens: Text | None
    """How the sequence length follows from width W, height H (px) and frames F."""
    spatial_compression: PositiveCount | None
    """VAE: pixels along one edge of a latent."""
    temporal_compression: PositiveCount | None
    """VAE: frames to one latent frame; 1 for images."""
    latent_channels: PositiveCount | None
    system: System | None
    """None for everything but denoisers, and where a denoiser's surroundings are not established."""
    distillation: Distillation | None
    """What the checkpoint was distilled for; None where no source was read."""
    distillation_source: Text | None
    note: Text | None
    config: dict[str, Any]
    """Keyword arguments of the class; shared between callers, so copy before changing."""
    source: ComponentSource

    @property
    def family_facts(self) -> FamilyFacts:
        """What holds for every model of a denoiser's family."""
        assert self.family is not None, f"{self.name} is no denoiser, so it has no family"
        return family_facts(self.family)

    @property
    def is_trainable(self) -> bool:
        """Whether Foretune trains this denoiser."""
        return self.family_facts.is_trainable and self.name not in self.family_facts.untrainable_models

    @property
    def distilled(self) -> bool | None:
        """Whether few-step sampling was distilled in, which plain fine-tuning undoes; None if not known.

        Guidance distillation does not count: it still samples in many steps and trains as usual.
        """
        return None if self.distillation is None else self.distillation == "timestep"

    @model_validator(mode="after")
    def _fields_fit_the_role(self) -> Self:
        is_denoiser, is_vae = self.role == "denoiser", self.role == "vae"
        if is_denoiser != (self.family is not None):
            raise ValueError("a denoiser has a family, and nothing else has")
        if self.system is not None and not is_denoiser:
            raise ValueError("only a denoiser has a system")
        if is_denoiser and self.lora_params_per_rank is None:
            raise ValueError("a denoiser has LoRA sizes")
        geometry = (self.spatial_compression, self.temporal_compression, self.latent_channels)
        if any((value is not None) != is_vae for value in geometry):
            raise ValueError("a VAE has its compression and channels, and nothing else has")
        if (self.distillation is None) != (self.distillation_source is None):
            raise ValueError("distillation and its source stand together")
        if self.num_linear_weight_params + self.num_conv_weight_params > self.num_params:
            raise ValueError("linear and convolution weights are more than all parameters")
        if not self.config:
            raise ValueError("config is empty")
        return self


def _wanted(system: System) -> list[tuple[str, str, Role]]:
    """The rows a system refers to: field, name, and the part that the named row must play."""
    single: list[tuple[str, str | None, Role]] = [
        ("system.vae", system.vae, "vae"),
        ("system.image_encoder", system.image_encoder, "image_encoder"),
    ]
    encoders: list[tuple[str, str, Role]] = [
        ("system.text_encoders", name, "text_encoder") for name in system.text_encoders
    ]
    return [(field, name, role) for field, name, role in single if name is not None] + encoders


def _broken_links(rows: Sequence[ModelComponent], role_of: Mapping[str, str]) -> list[str]:
    """References to rows that are not there or play another part, and families with more than one class.

    `role_of` also knows the rows that failed their own check, so that one fault is not reported twice.
    """
    problems: list[str] = []
    class_of_family: dict[str, str] = {}
    for row in rows:
        if row.family is not None:
            expected = class_of_family.setdefault(row.family, row.class_name)
            if row.class_name != expected:
                problems.append(f"{row.name}, family: {row.family} is {expected}, not {row.class_name}")
        for field, name, role in _wanted(row.system) if row.system is not None else ():
            if name not in role_of:
                problems.append(f"{row.name}, {field}: no component is named {name!r}")
            elif role_of[name] != role:
                problems.append(f"{row.name}, {field}: {name!r} is a {role_of[name]}, not a {role}")
    return problems


def read_components(path: Path) -> Mapping[str, ModelComponent]:
    """Every component of a file by name; raises `CatalogError` with all that is wrong with the file."""
    raw_rows = read_json(path, "components")
    rows, problems = validated(ModelComponent, raw_rows, label="name")
    role_of = {str(raw.get("name")): str(raw.get("role")) for raw in raw_rows}
    raise_all(path, [*problems, *doubles(rows, lambda row: row.name), *_broken_links(rows, role_of)])
    return MappingProxyType({row.name: row for row in rows})


@cache
def components() -> Mapping[str, ModelComponent]:
    """Every component of the catalogue by name, denoisers first."""
    return read_components(DATA_DIR / "models.json")


@cache
def denoisers() -> Mapping[str, ModelComponent]:
    """The components that are trained to remove noise, by name."""
    return MappingProxyType({name: row for name, row in components().items() if row.role == "denoiser"})


def component(name: str) -> ModelComponent:
    """The component of that name; an unknown one is answered with the nearest."""
    try:
        return components()[name]
    except KeyError:
        raise UnknownName("component", name, components()) from None


@cache
def denoiser_names() -> Names:
    """Names of models as people write them: FLUX.1-dev, sdxl, black-forest-labs/FLUX.1-dev."""
    repos = {name: row.hub_repo for name, row in denoisers().items() if row.hub_repo is not None}
    return Names(
        kind="model",
        known={name: (repos[name], repos[name].partition("/")[2]) if name in repos else () for name in denoisers()},
        details={},
        conventions={},
    )


def denoiser(name: str) -> ModelComponent:
    """The denoiser that a name stands for; an unknown one is answered with the nearest."""
    return denoisers()[denoiser_names().resolve(name).name]
