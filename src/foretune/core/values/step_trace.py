"""What one training step allocates and computes, as a function of its sizes."""

from typing import Literal

from pydantic import Field

from foretune.core.values.base import Part, Value

Size = Literal["batch", "tokens", "frames", "depth", "rank"]


class Growth(Part):
    """A number as a sum of terms, each a coefficient times powers of the sizes.

    Bytes and FLOPs of a step grow like this exactly, because every operator's shape is a product of sizes.
    """

    terms: tuple[tuple[float, dict[Size, int]], ...]
    """(coefficient, {size: power}); no powers is a constant."""

    def at(self, sizes: dict[Size, float]) -> float:
        total = 0.0
        for coefficient, powers in self.terms:
            product = coefficient
            for size, power in powers.items():
                product *= sizes[size] ** power
            total += product
        return total


class PhaseTrace(Part):
    """One phase of a step: forward, backward, optimizer."""

    name: str
    peak_bytes_by_category: dict[str, Growth]
    """Live bytes at the phase's peak: weights, gradients, optimizer state, activations, temporaries."""
    flops: Growth
    bytes_moved: Growth


class StepTrace(Value):
    """Keyed by the numerics it imitates and the sharding layout, not by a device."""

    model: str
    numerics: Literal["cuda", "cpu"]
    sharding: str = "none"
    phases: tuple[PhaseTrace, ...]
    made_with: dict[str, str] = Field(description="versions of the packages the trace was made with")
    made_from: str = Field(description="hash of the step's sources and the model's configuration")
