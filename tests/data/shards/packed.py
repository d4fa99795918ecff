"""Small packed sets for tests."""

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from foretune.data.shards import Manifest, PackedSample, Retry, SampleFacts, ShardLimits, ShardWriter, open_store
from foretune.data.shards.writer import write_manifest
from foretune.data.sources.fingerprint import content_fingerprint

AT_ONCE = Retry(first_wait_s=0.0)


def png(number: int, width_px: int = 8, height_px: int = 8) -> bytes:
    """An image that no other number has."""
    pixels = np.random.default_rng(number).integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def sample(number: int, width_px: int = 8, height_px: int = 8) -> PackedSample:
    data, caption = png(number, width_px, height_px), f"caption {number}"
    facts = SampleFacts(fingerprint=content_fingerprint(data), caption=caption, width_px=width_px, height_px=height_px)
    return PackedSample(key=f"{number:09d}", members={"png": data, "txt": caption.encode()}, facts=facts)


def write_set(place: str | Path, samples: Iterable[PackedSample], per_shard: int) -> Manifest:
    store = open_store(str(place))
    with ShardWriter(store, limits=ShardLimits(max_samples=per_shard), retry=AT_ONCE) as writer:
        for each in samples:
            writer.add(each)
    return write_manifest(store, writer.entries, retry=AT_ONCE)
