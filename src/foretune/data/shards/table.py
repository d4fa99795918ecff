"""A few bytes per sample of a whole set: all that the split into training and held-out samples and the buckets need.

Ten bytes per image: the number that decides whether it is held out (4), width (2), height (2), frames (2). It is one
file, so a set of a million samples starts with one read of 10 MB instead of one read per shard.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from foretune.data.shards.index import ShardIndex
from foretune.data.shards.retrying import ShardFault
from foretune.data.split import fingerprint_number, place_of_split

ROW = np.dtype([("split", "<u4"), ("width_px", "<u2"), ("height_px", "<u2"), ("num_frames", "<u2")])
Rows = npt.NDArray[np.void]
MOST_SIDE_PX = 2**16 - 1
_SPLIT_STEPS = 2**32


def table_rows(index: ShardIndex) -> Rows:
    """Returns the rows of a shard's samples."""
    rows = np.zeros(len(index), ROW)
    rows["split"] = [_split_number(index.facts(place).fingerprint) for place in range(len(index))]
    for name in ("width_px", "height_px", "num_frames"):
        rows[name] = np.minimum(index.column(name), MOST_SIDE_PX)
    return rows


def table_bytes(rows: Iterable[Rows]) -> bytes:
    """Returns the file of all shards' rows, in their order."""
    return b"".join(part.tobytes() for part in rows)


def read_table(data: bytes, num_samples: int) -> Rows:
    """Returns the rows of a set; raises `ShardFault` where there are more or fewer."""
    needed_bytes = num_samples * ROW.itemsize
    if len(data) != needed_bytes:
        raise ShardFault(f"it has {len(data):,} bytes where {num_samples:,} samples need {needed_bytes:,}")
    return np.frombuffer(data, ROW)


def is_held_out(rows: Rows, share: float) -> npt.NDArray[np.bool_]:
    """Whether each sample is held out: the same samples as of a folder with the same files (`data.split`)."""
    if share <= 0 or len(rows) < 2:  # noqa: PLR2004
        return np.zeros(len(rows), np.bool_)
    places = rows["split"].astype(np.float64) / _SPLIT_STEPS
    held_out: npt.NDArray[np.bool_] = places < share
    if not held_out.any():
        held_out[int(places.argmin())] = True
    if held_out.all():
        held_out[int(places.argmax())] = False
    return held_out


def _split_number(fingerprint: str) -> int:
    return int(place_of_split(fingerprint_number(fingerprint)) * _SPLIT_STEPS)
