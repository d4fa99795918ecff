"""The small sizes and depths at which a step is recorded, chosen so that the result is valid for all."""

from dataclasses import dataclass
from itertools import groupby

import torch

from foretune.choices.checkpointing import unit_width
from foretune.choices.training import Levers
from foretune.core.errors import UserError
from foretune.models.family import Family
from foretune.trace.blocks import kinds_of_units, units_of
from foretune.trace.growth import Sizes
from foretune.trace.program import FEW_BLOCKS
from foretune.trace.tracing import StepSizes

# Number of blocks in a stack that may differ from the rest: the last of SD3 and Mochi takes no text.
_MOST_UNLIKE = 2
_RANKS = (4, 8, 2)
_BATCHES = (2, 3, 4)
# In units of the model's smallest side. Some models pad their tokens to a multiple of 32; none of these is the one size
# (16 or 32) for which some models have a precomputed position table.
_SIDES = (8, 24, 40)
_LEAST_APART = 4


@dataclass(frozen=True)
class Probe:
    """One recording to make."""

    sizes: StepSizes
    rank: int

    def in_trace(self, family: Family) -> Sizes:
        """Returns the sizes of a StepTrace: samples, latent positions per sample, text tokens, adapter rank."""
        return (
            self.sizes.batch_size,
            latent_positions(family, self.sizes),
            self.sizes.num_text_tokens,
            self.rank,
        )


def latent_positions(family: Family, sizes: StepSizes) -> int:
    """Returns height x width x frames of one sample's latents, before patching."""
    _, *extent = family.latent_shape(sizes.height_px, sizes.width_px, sizes.num_frames)
    product = 1
    for side in extent:
        product *= side
    return product


def probes(family: Family, *, has_rank: bool, num_text_tokens: int | None = None) -> tuple[Probe, ...]:
    """Returns a base, probes that change batch and rank, image and text in turn, and one that changes all as a check.

    Batch and rank are changed together, by different ratios, because each is either a plain factor or none.
    `num_text_tokens` is given if the trace need not be valid for other lengths.

    All are square, because some models treat other shapes differently. A model that processes a batch sample by sample
    runs another program for each batch size, so its probes have one sample.
    """
    batch, more_batch, other_batch = (1, 1, 1) if family.goes_by_samples else _BATCHES
    side, more_side, other_side = _sides(family)
    text, more_text, other_text = _text_tokens(family) if num_text_tokens is None else (num_text_tokens,) * 3
    frames, more_frames = (9, 17) if family.default_num_frames() > 1 else (1, 1)
    rank, more_rank, other_rank = _RANKS if has_rank else (_RANKS[0],) * 3
    found = [
        _probe(family, batch, side, text, frames, rank),
        _probe(family, more_batch, side, text, frames, more_rank),
        _probe(family, batch, more_side, text, frames, rank),
        _probe(family, batch, side, more_text, frames, rank),
        _probe(family, other_batch, other_side, other_text, more_frames, other_rank),
    ]
    return tuple(dict.fromkeys(found))


def _sides(family: Family) -> tuple[int, int, int]:
    """Returns three sides for which the model has positions."""
    most_px = family.max_resolution_px()
    if most_px is None or most_px >= _SIDES[-1] * family.size_multiple_px():
        return _SIDES
    # All positions need no cropping, so the largest side would be another program.
    least, most = _SIDES[0], most_px // family.size_multiple_px() - 2
    if most - least < _LEAST_APART:
        raise UserError(f"A model with positions for sides up to {most_px} px is too small to plan.")
    return (least, (least + most) // 2 - 1, most)


def _probe(family: Family, batch: int, side: int, tokens: int, num_frames: int, rank: int) -> Probe:
    side_px = side * family.size_multiple_px()
    sizes = StepSizes(
        batch_size=batch, height_px=side_px, width_px=side_px, num_text_tokens=tokens, num_frames=num_frames
    )
    return Probe(sizes, rank)


def _text_tokens(family: Family) -> tuple[int, int, int]:
    """Returns three numbers of text tokens, all the same for models without captions or with a fixed length."""
    own = family.own_text_tokens()
    if own == 0 or family.text_is_fixed:
        return (own, own, own)
    return (32, 64, 96)


def shallow(family: Family, levers: Levers, fewest: int = FEW_BLOCKS) -> Family:
    """Returns the same model with as few blocks as show how they repeat, individually or in units.

    A stack may begin or end with blocks that differ from the rest; then it takes a few more to see the rest repeat. The
    remainder of a stack that is divided into units does not change.
    """
    kinds = family.block_kinds()
    if not kinds:
        return family
    full, width = run_lengths(family, levers), unit_width(levers)
    for num_units in range(fewest, fewest + _MOST_UNLIKE + 1):
        found = family.with_depths(tuple(min(num_units * width + kind.count % width, kind.count) for kind in kinds))
        lengths = run_lengths(found, levers)
        if len(lengths) == len(full) and all(
            length == whole or length >= fewest for length, whole in zip(lengths, full, strict=True)
        ):
            return found
    return family


def run_lengths(family: Family, levers: Levers) -> list[int]:
    """Returns the lengths of the runs of equal units of blocks."""
    kinds = kinds_of_units(units_of(family, family.denoiser_on_meta(torch.bfloat16), levers))
    return [len(list(run)) for _, run in groupby(kinds)]
