"""Opens a packed set in a fresh process and streams it: `python -m tests.proofs.streaming_worker REQUEST`.

Prints one line of JSON: processor time of the start, memory while it streams, and a hash over all batches.
"""

import hashlib
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from foretune.choices.data import ShardsData
from foretune.data.buckets import Bucket
from foretune.data.grouping import buckets_for, order_for
from foretune.data.loading import loader
from foretune.data.maker import BatchMaker
from foretune.data.sources import open_source
from foretune.data.split import split
from tests.data.made import latent_shape

_SIDE_PX = 8
_BATCH = 50


def stream(request: dict[str, Any]) -> dict[str, Any]:
    process = psutil.Process()
    before_bytes, began_s = process.memory_info().rss, time.process_time()
    choice = ShardsData(
        kind="shards",
        path=request["path"],
        cache_dir=request["cache_dir"],
        shuffle_shards=request.get("shuffle_shards", 4),
        max_buckets=3,
        bucket_step_px=_SIDE_PX,
    )
    largest = Bucket(2 * _SIDE_PX, 2 * _SIDE_PX)
    source = open_source(choice, largest=largest)
    train, held_out = split(source, 0.05)
    buckets = buckets_for(source, train, choice, largest)
    order = order_for(source, train, buckets, only_largest_bucket=False, samples_per_step=_BATCH, seed=0)
    maker = BatchMaker(
        source=source,
        order=order,
        buckets=buckets,
        choice=choice,
        seed=0,
        batch_size=_BATCH,
        latent_shape=latent_shape,
    )
    first = maker[0]
    start_cpu_s, opened_bytes = time.process_time() - began_s, process.memory_info().rss
    num_steps = request.get("num_steps") or order.num_steps_per_epoch
    num_seen, digest, seen_bytes = 0, hashlib.blake2b(), [opened_bytes]
    seen = bytearray(len(source))
    for step, batch in enumerate(loader(maker, 0, num_steps, num_workers=request.get("num_workers", 0))):
        num_seen += len(batch)
        for index in batch.indices:
            seen[index] = 1
        digest.update(json.dumps([batch.indices, batch.captions]).encode())
        assert batch.images is not None
        digest.update(batch.images.numpy().tobytes())
        if step % max(1, num_steps // 20) == 0:
            seen_bytes.append(process.memory_info().rss)
    return {
        "num_samples": len(source),
        "num_train": len(train),
        "num_held_out": len(held_out),
        "num_buckets": len(buckets),
        "num_distinct": sum(seen),
        "num_seen": num_seen,
        "num_steps": num_steps,
        "first": list(first.indices),
        "start_cpu_s": start_cpu_s,
        "start_bytes": opened_bytes - before_bytes,
        "seen_bytes": seen_bytes,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "cpu_s": time.process_time() - began_s,
        "digest": digest.hexdigest(),
    }


if __name__ == "__main__":
    print(json.dumps(stream(json.loads(Path(sys.argv[1]).read_text()))))
