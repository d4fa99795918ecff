"""How the model is changed: all of its weights, or an adapter beside them."""

from typing import Annotated, Literal

from pydantic import Field

from foretune.choices.section import Section


class Full(Section):
    """Every weight of the denoiser is trained."""

    kind: Literal["full"] = "full"


class Lora(Section):
    """Low-rank adapters; the base stays as it is."""

    kind: Literal["lora"] = "lora"
    rank: int = Field(default=16, ge=1, le=4096)
    """Inner size of each adapter pair."""
    alpha: float | None = Field(default=None, gt=0)
    """The update is scaled by alpha / rank. Left out: equal to rank."""
    targets: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Ends of the module names to adapt. Left out: the family's attention projections."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the adapter's inputs that is dropped in training."""

    @property
    def effective_alpha(self) -> float:
        return float(self.rank) if self.alpha is None else self.alpha


Method = Annotated[Full | Lora, Field(discriminator="kind")]

METHODS: dict[str, type[Section]] = {"full": Full, "lora": Lora}
