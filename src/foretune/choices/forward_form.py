"""What decides which operators a forward pass without gradients runs; the sizes it runs them at are left aside."""

from dataclasses import dataclass
from typing import Literal

ForwardKind = Literal["encode", "decode", "text", "sample"]
TracedPrecision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class ForwardForm:
    """A pass through an autoencoder, a text encoder, or a denoiser that samples.

    Autoencoders of videos go through their frames in pieces, so the number of frames belongs to the form.
    """

    component: str
    """Its name in the catalogue."""
    kind: ForwardKind
    precision: TracedPrecision
    """Of the training around it. An autoencoder always encodes in fp32."""
    num_frames: int = 1

    def slug(self) -> str:
        """A file name that says what it is."""
        words = [self.component, self.kind, self.precision]
        if self.num_frames > 1:
            words.append(f"{self.num_frames}-frames")
        return ".".join(words)
