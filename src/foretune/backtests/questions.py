"""What a published row asks, and what is said of one that cannot be asked."""

from dataclasses import dataclass

from foretune.choices.experiment import Experiment
from foretune.config.from_trainers.dialects import Dialect, Peak

__all__ = ["BacktestQuestion", "LeftOut", "Peak", "Published", "RowSizes", "Unfit"]


@dataclass(frozen=True, kw_only=True)
class RowSizes:
    """The sizes of one forward pass."""

    batch_size: int
    height_px: int
    width_px: int
    num_frames: int
    num_text_tokens: int


@dataclass(frozen=True, kw_only=True)
class Published:
    """An exact peak as it was published."""

    peak: Peak
    num_bytes: int
    """With the unit read as written: GB is 10**9."""
    most_bytes: int
    """Where the publisher's GB may be GiB; otherwise equal to `num_bytes`."""


@dataclass(frozen=True, kw_only=True)
class BacktestQuestion:
    """A row as an experiment: what was trained, how, and what is known of the answer."""

    row_id: str
    source: str
    """The publishing program."""
    model: str
    """Name of the denoiser in the catalogue."""
    experiment: Experiment
    sizes: RowSizes
    dialect: Dialect
    resident: tuple[str, ...]
    """Components of the catalogue, in 16-bit numbers, that stay on the device while it trains."""
    loaded_before: tuple[str, ...]
    """Components that are on the device with the denoiser before the first step and freed then. The published peak is
    the larger one of that moment and of the step."""
    published: Published | None
    """None where no exact peak was published; then only whether it fitted is known."""
    fitted: bool | None
    """False: it ran out of memory."""
    device: str | None
    """Name of the device in the catalogue; None where it is not stated or not known."""
    device_bytes: int | None
    """Memory of the device as its driver reports it, or as the row gives it."""
    assumptions: tuple[str, ...]
    """What the row leaves open and how it was read."""

    @property
    def base(self) -> str:
        """The numbers of the frozen base and the backend that makes them; what each keeps differs."""
        numbers = self.experiment.quantize.denoiser
        if numbers == "none":
            return "not quantised"
        return f"{numbers} ({'bitsandbytes' if numbers in ('nf4', 'int8-bnb') else 'torchao'})"


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A row that today's choices cannot express, or that does not say enough."""

    row_id: str
    source: str
    reason: str


class Unfit(Exception):
    """Why a row cannot be asked; its text becomes the reason."""
