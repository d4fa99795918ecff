"""A million tiny samples: packed, indexed and streamed with flat memory, and a start that does not depend on them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from foretune.data.shards import SampleFacts, ShardLimits, open_store
from foretune.data.shards.layout import MANIFEST, TABLE
from foretune.data.shards.packing import pack
from foretune.data.sources.fingerprint import content_fingerprint
from tests.conftest import ProofSize
from tests.waiting import HANG_S

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

_MOST_START_CPU_S = 5.0
_MOST_STATE_BYTES = 40
"""Of memory for each sample of the set: the table while the start reads it, and one byte that stays."""
_MOST_GROWTH_BYTES = 8
"""Of memory for each sample that was streamed: nothing is kept, and the allocator's steps are larger than nothing."""
_SIZES_PX = ((16, 16), (24, 8), (8, 24))


class TinyImages:
    """Images of three shapes, each with its own pixels, as BMP: the cost is that of packing, not of PNG."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def sample(self, number: int) -> tuple[dict[str, bytes], SampleFacts]:
        width_px, height_px = _SIZES_PX[number % 3]
        pixels = number.to_bytes(8, "little") * (width_px * height_px * 3 // 8)
        header = b"BM" + (54 + len(pixels)).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
        header += (40).to_bytes(4, "little") + width_px.to_bytes(4, "little") + height_px.to_bytes(4, "little")
        header += (1).to_bytes(2, "little") + (24).to_bytes(2, "little") + bytes(24)
        data = header + pixels
        caption = f"sample {number}"
        facts = SampleFacts(
            fingerprint=content_fingerprint(data), caption=caption, width_px=width_px, height_px=height_px
        )
        return {"bmp": data}, facts


def _streamed(tmp_path: Path, name: str, **request: Any) -> dict[str, Any]:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({"path": str(tmp_path / "set"), "cache_dir": str(tmp_path / "cache"), **request}))
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.proofs.streaming_worker", str(path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=20 * HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_streaming_many_samples_with_flat_memory(
    tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    num = proof_size(1_000_000, 10_000)
    rss: list[int] = []
    process, began_s = psutil.Process(), time.process_time()

    def on_progress(done: int, total: int) -> None:
        if done % max(1, total // 10) == 0:
            rss.append(process.memory_info().rss)

    packed = pack(
        TinyImages(num),
        open_store(str(tmp_path / "set")),
        limits=ShardLimits(max_samples=max(1000, num // 100)),
        on_progress=on_progress,
    )
    pack_s = time.process_time() - began_s
    pack_growth = (rss[-1] - rss[1]) / (num * 0.8)
    whole = _streamed(tmp_path, "whole")
    part = {"num_steps": max(20, whole["num_steps"] // 50)}
    alone, by_two, by_three = (_streamed(tmp_path, f"{n}", num_workers=n, **part) for n in (0, 2, 3))
    growth = (whole["seen_bytes"][-1] - whole["seen_bytes"][5]) / (whole["num_seen"] * 0.75)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "set").iterdir()}
    num_index_bytes = sum(size for name, size in sizes.items() if name.endswith(".index"))
    report_figure(
        f"{num:,} samples in {packed.num_shards} shards: packed at {1e6 * pack_s / num:.0f} us of processor time a "
        f"sample, memory +{pack_growth:.1f} B a sample; start {whole['start_cpu_s']:.2f} s of processor time, "
        f"{whole['start_bytes'] / num:.1f} B of memory a sample; streamed at "
        f"{1e6 * (whole['cpu_s'] - whole['start_cpu_s']) / whole['num_seen']:.0f} us a sample, memory "
        f"{growth:+.2f} B a sample; table {sizes[TABLE] / num:.0f} B, index {num_index_bytes / num:.0f} B, tar "
        f"{packed.num_bytes / num:.0f} B a sample, manifest {sizes[MANIFEST] / packed.num_shards:.0f} B a shard; "
        "0, 2 and 3 workers: equal batches"
    )
    assert whole["num_samples"] == packed.num_samples == num
    assert whole["num_train"] + whole["num_held_out"] == num
    assert whole["num_distinct"] == whole["num_train"], "each sample that is trained on, and no other"
    assert 0 <= whole["num_seen"] - whole["num_train"] < 3 * 50, "only the last steps of the buckets are filled up"
    assert whole["num_buckets"] == 3
    assert alone["digest"] == by_two["digest"] == by_three["digest"]
    assert alone["first"] == whole["first"]
    assert whole["start_cpu_s"] < _MOST_START_CPU_S
    assert whole["start_bytes"] < _MOST_STATE_BYTES * num + 60e6
    assert growth < _MOST_GROWTH_BYTES + 20e6 / num
    assert pack_growth < _MOST_GROWTH_BYTES + 40e6 / num
