"""How the model is changed: all of its weights, or an adapter beside them."""

from typing import Annotated, Literal

from pydantic import Field

from foretune.choices.section import FORMS_STEP, INCIDENTAL, LATER, Section


class Full(Section):
    """Every weight of the denoiser is trained."""

    kind: Literal["full"] = "full"


class Adapter(Section):
    """Weights beside the base, which stays as it is."""

    targets: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Target modules, by the end of their names. Left out: the attention projections of the model family."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the adapter's inputs in training."""
    # Adapters that are read count by their content, as the model does, wherever they lie.
    start_from: Annotated[str | None, LATER, INCIDENTAL] = Field(default=None, min_length=1)
    """Continue from this adapter: a folder written by `foretune export`, or `OWNER/REPO` on the Hub, of the same kind
    and shape."""
    training_adapter: Annotated[str | None, LATER, INCIDENTAL] = Field(default=None, min_length=1)
    """Folder, file or Hub id of a LoRA that is active in training only, not in sampling or export: for example one that
    undoes the distillation of FLUX.1-schnell, so that it can be trained without losing its few-step sampling."""


class LowRank(Adapter):
    """Adapters whose size is an inner rank, and whose strength is alpha / rank."""

    rank: Annotated[int, FORMS_STEP] = Field(default=16, ge=1, le=4096)
    """Rank of the adapter matrices."""
    alpha: float | None = Field(default=None, gt=0)
    """The update is scaled by alpha / rank (rslora: by alpha / sqrt(rank)). Left out: equal to rank."""

    @property
    def effective_alpha(self) -> float:
        return float(self.rank) if self.alpha is None else self.alpha


class Lora(LowRank):
    """Low-rank adapters beside the frozen base."""

    kind: Literal["lora"] = "lora"


class Dora(LowRank):
    """LoRA with weight decomposition into magnitude and direction; slower, often better at low ranks."""

    kind: Literal["dora"] = "dora"


class RsLora(LowRank):
    """LoRA scaled by alpha / sqrt(rank), so that high ranks learn as fast as low ones."""

    kind: Literal["rslora"] = "rslora"


class Loha(LowRank):
    """Hadamard product of two low-rank matrices: a higher rank from the same number of weights."""

    kind: Literal["loha"] = "loha"


class Lokr(LowRank):
    """Kronecker product of two small matrices: very few weights."""

    kind: Literal["lokr"] = "lokr"
    factor: Annotated[int, FORMS_STEP] = Field(default=-1, ge=-1)
    """Rows and columns of the smaller matrix, if they divide those of the layer; otherwise the next smaller divisor, at
    most the square root. -1: two matrices of about equal size."""
    full_matrix: Annotated[bool, FORMS_STEP] = False
    """Train the larger matrix in full instead of as a low-rank pair."""


class Oft(Adapter):
    """Orthogonal fine-tuning: rotates blocks of the inputs; changes directions, never lengths."""

    kind: Literal["oft"] = "oft"
    block_size: Annotated[int, FORMS_STEP] = Field(default=32, ge=2, le=4096)
    """Number of inputs that are rotated together."""


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
