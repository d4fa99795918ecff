"""Splits samples into training and held-out ones."""

from array import array
from collections.abc import Sequence

from foretune.core.draws import uniform
from foretune.data.selected import SelectedSamples
from foretune.data.sources.base import IndexedSource, Source

# Hex digits of a fingerprint used as the index of a draw: 60 bits fit a signed 64-bit integer.
_NUM_DIGITS = 15


def fingerprint_number(fingerprint: str) -> int:
    """Returns a fingerprint as an index for draws, so that a draw depends on the content, not on the position."""
    return int(fingerprint[:_NUM_DIGITS], 16)


def place_of_split(number: int) -> float:
    """Returns where a sample's content places it in [0, 1): it is held out if that is below the share."""
    return uniform(0, "split", number)


def split(source: Source, share: float) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the indices to train on and those held out, both ascending.

    Each image's own hash decides, so adding one does not move others, and equal images are never on both sides. The
    share is therefore met on average, not exactly. But at least one sample is held out if a share is requested and
    there are two samples, and at least one is always trained on. Generated samples are too many to hash one by one: the
    last ones are held out.
    """
    num_samples = len(source)
    if isinstance(source, IndexedSource):
        is_held_out = source.held_out(share)
        return SelectedSamples(~is_held_out), SelectedSamples(is_held_out)
    if share <= 0 or num_samples < 2:  # noqa: PLR2004
        return range(num_samples), range(0)
    if source.is_generated:
        num_held_out = min(max(1, round(num_samples * share)), num_samples - 1)
        return range(num_samples - num_held_out), range(num_samples - num_held_out, num_samples)
    places = [place_of_split(fingerprint_number(source.info(index).fingerprint)) for index in range(num_samples)]
    held_out = [place < share for place in places]
    if not any(held_out):
        held_out[places.index(min(places))] = True
    if all(held_out):
        held_out[places.index(max(places))] = False
    return (
        array("q", (index for index in range(num_samples) if not held_out[index])),
        array("q", (index for index in range(num_samples) if held_out[index])),
    )
