"""The small sizes and depths at which a step is recorded, so that what is found holds for all."""

from dataclasses import dataclass
from itertools import groupby

import torch

from foretune.choices.checkpointing import unit_width
from foretune.choices.training import Levers
from foretune.models.family import Family
from foretune.trace.blocks import kinds_of_units, units_of
from foretune.trace.growth import Sizes
from foretune.trace.program import FEW_BLOCKS
from foretune.trace.tracing import StepSizes

# Blocks of a stack that are unlike the rest of it: the last of SD3 and Mochi takes no text.
_MOST_UNLIKE = 2
_RANKS = (4, 8, 2)
_BATCHES = (2, 3, 4)
# In the smallest sides that the model takes. Some fill up their tokens to a multiple of 32; none of these is the one
# size (16 or 32) for which some models have their table of positions ready.
_SIDES = (8, 24, 40)


@dataclass(frozen=True)
class Probe:
    """One recording to make."""

    sizes: StepSizes
    rank: int

    def in_trace(self, family: Family) -> Sizes:
        """As a StepTrace counts: samples, latent positions of a sample, text tokens, adapter rank."""
        return (
            self.sizes.batch_size,
            latent_positions(family, self.sizes),
            self.sizes.num_text_tokens,
            self.rank,
        )


def latent_positions(family: Family, sizes: StepSizes) -> int:
    """Height times width times frames of one sample's latents, before they are cut into patches."""
    _, *extent = family.latent_shape(sizes.height_px, sizes.width_px, sizes.num_frames)
    product = 1
    for side in extent:
        product *= side
    return product


def probes(family: Family, *, has_rank: bool, num_text_tokens: int | None = None) -> tuple[Probe, ...]:
    """A base; batch and rank, image and text changed in turn; and one of all at once that checks what the others say.

    Batch and rank are changed together, by unlike shares, because either is a plain factor or none. A number of text
    tokens is given where the trace need not hold for others.

    All are square: some models treat other shapes in another way. A model that goes through a batch sample by sample
    does other things for each size of a batch, so there the probes are of one sample.
    """
    batch, more_batch, other_batch = (1, 1, 1) if family.goes_by_samples else _BATCHES
    side, more_side, other_side = _SIDES
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


def _probe(family: Family, batch: int, side: int, tokens: int, num_frames: int, rank: int) -> Probe:
    side_px = side * family.size_multiple_px()
    sizes = StepSizes(
        batch_size=batch, height_px=side_px, width_px=side_px, num_text_tokens=tokens, num_frames=num_frames
    )
    return Probe(sizes, rank)


def _text_tokens(family: Family) -> tuple[int, int, int]:
    """Three numbers of text tokens; models without a caption, or with one of fixed length, have the same one."""
    own = family.own_text_tokens()
    if own == 0 or family.text_is_fixed:
        return (own, own, own)
    return (32, 64, 96)


def shallow(family: Family, levers: Levers, fewest: int = FEW_BLOCKS) -> Family:
    """The same model with as few blocks as show how they repeat, by themselves or in units of several.

    A stack may end, or begin, with blocks that are unlike the rest; then it takes a few more to see the rest repeat.
    What is left over when a stack is cut into units stays as much as it is.
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
    """Lengths of the runs of equal units of blocks."""
    kinds = kinds_of_units(units_of(family, family.denoiser_on_meta(torch.bfloat16), levers))
    return [len(list(run)) for _, run in groupby(kinds)]
