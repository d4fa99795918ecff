"""Training streams from a real S3 server: each sample once, and a killed run ends as one that was never killed."""

import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch

pytest.importorskip("moto")
pytest.importorskip("s3fs")

from foretune.choices.data import ShardsData
from foretune.data.buckets import Bucket
from foretune.data.grouping import order_for
from foretune.data.loading import loader
from foretune.data.maker import BatchMaker
from foretune.data.shards import open_set
from foretune.data.sources.shards import open_shard_source
from foretune.data.split import split
from tests.conftest import ProofSize
from tests.data.made import latent_shape
from tests.data.shards.packed import sample, write_set
from tests.data.shards.servers import BUCKET, s3_server
from tests.proofs.ends import end_of
from tests.proofs.lost_ranks import TwoProcesses
from tests.waiting import HANG_S

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

_LEAST_RATIO = 0.95
Requests = list[tuple[str, str]]


@pytest.fixture
def requests() -> Iterator[Requests]:
    """Starts S3; the path and the range of each GET that it was sent."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    noted: Requests = []
    call = DomainDispatcherApplication.__call__

    def watched(self: Any, environ: dict[str, Any], start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] == "GET":
            noted.append((environ["PATH_INFO"], environ.get("HTTP_RANGE", "")))
        return call(self, environ, start_response)

    with mock.patch.object(DomainDispatcherApplication, "__call__", watched), s3_server():
        yield noted


def test_streaming_in_two_ranks_from_s3_is_resumed_bit_exactly_in_mid_epoch(
    tmp_path: Path,
    tiny_pipeline: Callable[..., Path],
    forked_python: "ForkedPython",
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
    requests: Requests,
) -> None:
    num, num_kills = proof_size(96, 32), proof_size(6, 1)
    model, place = tiny_pipeline("ddpm"), f"s3://{BUCKET}/set"
    write_set(place, (sample(n, 32, 32) for n in range(num)), per_shard=max(4, num // 8))
    write_set(tmp_path / "set", (sample(n, 32, 32) for n in range(num)), per_shard=max(4, num // 8))
    data = {"kind": "shards", "resolution": 32, "held_out": 0.1, "shuffle_shards": 2, "shard_cache_gib": 0}
    sections: dict[str, Any] = {
        "method": {"kind": "full"},
        "train": {"epochs": 1, "steps": None, "batch_size": 1},
        "save": {"every": 1, "keep": 2},
        "validate": {"num_inference_steps": 2, "num_held_out": num},
    }

    def started(name: str, path: str, *, cache_gib: float) -> TwoProcesses:
        own = {**data, "path": path, "cache_dir": str(tmp_path / name / "cache"), "shard_cache_gib": cache_gib}
        return TwoProcesses(forked_python, model, tmp_path / name, data=own, **sections)

    from_disk = started("disk", str(tmp_path / "set"), cache_gib=0)
    out, _ = from_disk.process.communicate(timeout=HANG_S)
    assert from_disk.process.returncode == 0, out
    requests.clear()
    whole = started("whole", place, cache_gib=0)
    out, _ = whole.process.communicate(timeout=HANG_S)
    assert whole.process.returncode == 0, out
    reads = Counter(found for found in requests if found[0].endswith(".tar"))
    # The validation set is read by each rank when it starts.
    manifest = open_set(place)
    _, _, effective = whole.run.read_experiment()
    num_train, num_held_out = (effective[f"num_{part}_samples"] for part in ("train", "held_out"))
    assert num_train + num_held_out == len(manifest) == num
    once = sum(count == 1 for count in reads.values())
    differences = end_of(from_disk.run).differences(end_of(whole.run))
    killed = started("killed", place, cache_gib=1)
    steps: list[int] = []
    for number in range(num_kills):
        steps.append(killed.wait_for_save_of_start(number + 1))
        killed.kill_all()
        killed.go_on()
    out, _ = killed.process.communicate(timeout=HANG_S)
    assert killed.process.returncode == 0, out
    differences += end_of(whole.run).differences(end_of(killed.run))
    report_figure(
        f"{num} samples from S3 in two ranks: {once} of {num_train} read by exactly one request in an epoch; killed "
        f"after steps {steps} of {num // 2} and resumed: {len(differences)} differences from the run that was not, "
        "and from that on local disk"
    )
    assert differences == []
    assert once >= num_train - num_train % 2
    assert all(0 < step < num_train // 2 for step in steps), "all kills were in mid-epoch"


_SERVER = """
import sys, time
from tests.data.shards.servers import s3_server
with s3_server() as variables:
    print(variables["AWS_ENDPOINT_URL"], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def s3_process() -> Iterator[None]:
    """S3 in another process, as it is in reality."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    from tests.data.shards.servers import KEYS

    assert server.stdout is not None
    with mock.patch.dict(os.environ, {**KEYS, "AWS_ENDPOINT_URL": server.stdout.readline().strip()}):
        yield
    server.communicate("")


def _maker(place: str, cache_dir: Path, batch_size: int) -> BatchMaker:
    choice = ShardsData(kind="shards", path=place, cache_dir=str(cache_dir), shuffle_shards=2)
    source, buckets = open_shard_source(choice), (Bucket(64, 64),)
    train, _ = split(source, 0)
    order = order_for(source, train, buckets, only_largest_bucket=False, samples_per_step=batch_size, seed=0)
    return BatchMaker(
        source=source,
        order=order,
        buckets=buckets,
        choice=choice,
        seed=0,
        batch_size=batch_size,
        latent_shape=latent_shape,
    )


def _step_s(maker: BatchMaker, first: int, num_steps: int, model: torch.nn.Module) -> float:
    """Mean seconds of a step, after the first ones, in which the loader starts."""
    warm_up, began_s = 4, 0.0
    for number, batch in enumerate(loader(maker, first, first + warm_up + num_steps, num_workers=1)):
        if number == warm_up:
            began_s = time.perf_counter()
        assert batch.images is not None
        for _ in range(3):
            model(batch.images).square().mean().backward()
    return (time.perf_counter() - began_s) / num_steps


def test_streaming_from_s3_is_as_fast_as_from_disk(
    tmp_path: Path, s3_process: None, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    num_rounds, num_steps, batch = proof_size(12, 4), proof_size(24, 10), 8
    place = f"s3://{BUCKET}/set"
    num = (num_steps + 4) * batch * 2
    for where in (place, str(tmp_path / "set")):
        write_set(where, (sample(n, 64, 64) for n in range(num)), per_shard=num // 8)
    layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3), torch.nn.Conv2d(64, 3, 3)]
    model = torch.nn.Sequential(*layers)
    ratios = []
    for turn in range(num_rounds):
        # In each round both read the same steps; each time the cache of shards is empty.
        makers = {
            "disk": _maker(str(tmp_path / "set"), tmp_path / "none", batch),
            "s3": _maker(place, tmp_path / f"cache{turn}", batch),
        }
        names = ["disk", "s3"] if turn % 2 else ["s3", "disk"]
        seconds = {name: _step_s(makers[name], turn, num_steps, model) for name in names}
        ratios.append(seconds["disk"] / seconds["s3"])
    middle = statistics.median(ratios)
    spread = 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5
    low, high = middle - 2 * spread, middle + 2 * spread
    report_figure(
        f"throughput from S3 with an empty cache over that from local disk, {num_rounds} rounds in turns: {middle:.3f} "
        f"[{low:.3f}, {high:.3f}]"
    )
    assert high > _LEAST_RATIO
