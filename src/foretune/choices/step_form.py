"""What of an experiment decides which operators its step runs; the sizes it runs them at are left aside."""

from dataclasses import dataclass
from typing import Any, Literal

from foretune.choices.experiment import Experiment
from foretune.choices.method import Lora
from foretune.core.values.base import content_hash

Numerics = Literal["cuda", "cpu"]


@dataclass(frozen=True, kw_only=True)
class StepForm:
    """Steps of equal form differ in how many bytes their storages have, and in which blocks are computed again.

    Accumulated gradients and a moving average are added to a form when it is run, and a share of checkpointed blocks is
    made of the two forms in which all or none are. Clipping of gradients and loss scaling work in place. fp16 is taken
    to have the bytes of bf16; FLUX clips its blocks' results in fp16 alone, so that there 2 to 3 % are missing where
    blocks are kept.
    """

    model: str
    method: Literal["full", "lora"]
    precision: Literal["fp32", "bf16"] = "bf16"
    weights: Literal["fp32", "bf16"] = "fp32"
    compensation: Literal["none", "kahan"] = "none"
    targets: tuple[str, ...] | None = None
    has_dropout: bool = False
    is_checkpointed: bool = False
    numerics: Numerics = "cuda"

    @classmethod
    def of(cls, experiment: Experiment, *, is_checkpointed: bool, numerics: Numerics = "cuda") -> "StepForm":
        method, train = experiment.method, experiment.train
        return cls(
            model=experiment.model,
            method=method.kind,
            precision="fp32" if train.precision == "fp32" else "bf16",
            weights=train.weights,
            compensation=experiment.optimizer.compensation,
            targets=method.targets if isinstance(method, Lora) else None,
            has_dropout=isinstance(method, Lora) and method.dropout > 0,
            is_checkpointed=is_checkpointed,
            numerics=numerics,
        )

    def slug(self) -> str:
        """A file name that says what it is."""
        words = [self.method, self.precision, "checkpointed" if self.is_checkpointed else "kept"]
        if self.weights != "fp32":
            words.append(f"{self.weights}-weights")
        if self.compensation != "none":
            words.append(self.compensation)
        if self.has_dropout:
            words.append("dropout")
        if self.targets is not None:
            words.append(f"targets-{content_hash(list(self.targets))}")
        if self.numerics != "cuda":
            words.append(self.numerics)
        return f"{self.model}.{'.'.join(words)}"

    def experiment(self) -> Experiment:
        """An experiment of this form, for those who record it; its sizes are set by them."""
        method: dict[str, Any] = {"kind": self.method}
        if self.method == "lora":
            method |= {"targets": self.targets, "dropout": 0.1 if self.has_dropout else 0.0}
        return Experiment.model_validate(
            {
                "model": self.model,
                "method": method,
                "data": {"kind": "shapes"},
                "train": {"steps": 1, "precision": self.precision, "weights": self.weights},
                "optimizer": {"compensation": self.compensation},
                "levers": {"gradient_checkpointing": 1.0 if self.is_checkpointed else 0.0},
            }
        )
