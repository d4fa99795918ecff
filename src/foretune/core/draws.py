"""Randomness as a pure function: the same seed, indices and purpose give the same draw, anywhere.

Nothing is kept between draws, so resuming, other world sizes and other numbers of loader processes cannot change
them. Whoever needs numbers seeds a generator of its own with what `derive_seed` returns.
"""

import hashlib
import struct
from typing import Literal

Purpose = Literal[
    "order",
    "split",
    "crop",
    "flip",
    "caption",
    "posterior",
    "noise",
    "timestep",
    "dropout",
    "rounding",
    "init",
    "sample",
    "shape",
]


def derive_seed(seed: int, purpose: Purpose, *indices: int) -> int:
    """A seed of 63 bits for one draw; draws that differ in anything are independent."""
    packed = struct.pack(f"<{len(indices) + 1}q", seed, *indices)
    digest = hashlib.blake2b(packed, digest_size=8, person=purpose.encode()).digest()
    return int.from_bytes(digest, "little") >> 1


def uniform(seed: int, purpose: Purpose, *indices: int) -> float:
    """A number in [0, 1), all 53 bits of a double used."""
    return (derive_seed(seed, purpose, *indices) >> 10) / 2**53


class Permutation:
    """A shuffle of range(length) that needs no memory: any position can be asked for, at any length.

    Short ones, for which a Feistel network is visibly uneven, are sorted by hash and kept. Longer ones are four Feistel
    rounds over the smallest even number of bits that holds the length; results past the end are put through again,
    which needs less than four times on average.
    """

    _NUM_ROUNDS = 4
    _MOST_LISTED = 128

    def __init__(self, length: int, seed: int, *indices: int) -> None:
        assert length > 0
        self.length = length
        self._listed: list[int] | None = None
        if length <= self._MOST_LISTED:
            self._listed = sorted(range(length), key=lambda item: derive_seed(seed, "order", item, *indices))
            return
        self._half_bits = max(1, ((length - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half_bits) - 1
        self._keys = [derive_seed(seed, "order", round_, *indices) for round_ in range(self._NUM_ROUNDS)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self.length:
            raise IndexError(position)
        if self._listed is not None:
            return self._listed[position]
        value = self._rounds(position)
        while value >= self.length:
            value = self._rounds(value)
        return value

    def _rounds(self, value: int) -> int:
        left, right = value >> self._half_bits, value & self._mask
        for key in self._keys:
            left, right = right, left ^ (self._mixed(right, key) & self._mask)
        return (left << self._half_bits) | right

    @staticmethod
    def _mixed(value: int, key: int) -> int:
        """A multiply-and-shift hash: quick, and scattered enough for a shuffle."""
        mixed = (value ^ key) & 0xFFFF_FFFF_FFFF_FFFF
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9 & 0xFFFF_FFFF_FFFF_FFFF
        mixed = (mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB & 0xFFFF_FFFF_FFFF_FFFF
        return mixed ^ (mixed >> 31)
