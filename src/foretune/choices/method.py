"""How the model is changed: all of its weights, or an adapter beside them."""

from typing import Annotated, Literal

from pydantic import Field

from foretune.choices.section import INCIDENTAL, LATER, Section


class Full(Section):
    """Every weight of the denoiser is trained."""

    kind: Literal["full"] = "full"


class Adapter(Section):
    """Weights beside the base, which stays as it is."""

    targets: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Ends of the module names to adapt. Left out: the family's attention projections."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the adapter's inputs that is dropped in training."""
    # Adapters that are read count by their content, as the model does, wherever they lie.
    start_from: Annotated[str | None, LATER, INCIDENTAL] = Field(default=None, min_length=1)
    """Folder of an earlier adapter of the same kind and shape, as `foretune export` writes it, to go on from."""
    training_adapter: Annotated[str | None, LATER, INCIDENTAL] = Field(default=None, min_length=1)
    """Folder of a LoRA that is on while this one trains and absent when it samples or is exported. One that undoes the
    distillation of a base such as FLUX.1-schnell lets it be trained without losing its few steps."""


class LowRank(Adapter):
    """Adapters whose size is an inner rank, and whose strength is alpha / rank."""

    rank: int = Field(default=16, ge=1, le=4096)
    """Inner size of each adapter pair."""
    alpha: float | None = Field(default=None, gt=0)
    """The update is scaled by alpha / rank (rslora: by alpha / sqrt(rank)). Left out: equal to rank."""

    @property
    def effective_alpha(self) -> float:
        return float(self.rank) if self.alpha is None else self.alpha


class Lora(LowRank):
    """Low-rank adapters; the base stays as it is."""

    kind: Literal["lora"] = "lora"


class Dora(LowRank):
    """LoRA whose update keeps direction and length of each weight column apart; slower, often better at low ranks."""

    kind: Literal["dora"] = "dora"


class RsLora(LowRank):
    """LoRA whose strength is alpha / sqrt(rank), so that high ranks learn as fast as low ones."""

    kind: Literal["rslora"] = "rslora"


class Loha(LowRank):
    """The product, element by element, of two low-rank matrices: a higher rank from the same number of weights."""

    kind: Literal["loha"] = "loha"


class Lokr(LowRank):
    """The Kronecker product of two small matrices: very few weights."""

    kind: Literal["lokr"] = "lokr"
    factor: int = Field(default=-1, ge=-1)
    """Rows and columns of the smaller matrix, where they divide those of the layer; else the largest number below that
    does, up to the square root. -1: about equal matrices."""
    full_matrix: bool = False
    """The larger matrix is kept whole instead of as two of the rank."""


class Oft(Adapter):
    """Rotations of blocks of the inputs: changes directions, never lengths."""

    kind: Literal["oft"] = "oft"
    block_size: int = Field(default=32, ge=2, le=4096)
    """Inputs that are rotated together."""


AnyAdapter = Lora | Dora | RsLora | Loha | Lokr | Oft
Method = Annotated[Full | AnyAdapter, Field(discriminator="kind")]
MethodKind = Literal["full", "lora", "dora", "rslora", "loha", "lokr", "oft"]

METHODS: dict[str, type[Section]] = {
    "full": Full,
    "lora": Lora,
    "dora": Dora,
    "rslora": RsLora,
    "loha": Loha,
    "lokr": Lokr,
    "oft": Oft,
}


def rank_of(method: Method) -> int:
    """The inner size that an adapter's bytes grow with; 1 where there is none."""
    return method.rank if isinstance(method, LowRank) else 1
