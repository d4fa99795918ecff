"""What torch's engines send in a step is what the planner counts: bytes and collectives, in one process of eight."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from foretune.choices.running import Sharding
from foretune.planner.timing.communication import Unit, UnitLayout, bucketed, sharded_pass
from foretune.planner.timing.interconnect import Interconnect
from foretune.planner.timing.parallel_time import links_of
from foretune.step.engine import Engine, share
from tests.planner.timing.even_speed import EvenSpeed

NUM_DEVICES, NUM_BLOCKS, WIDTH = 8, 5, 64
# Names of both generations of torch's collectives on tensors.
GATHERS, SCATTERS = ("all_gather_single", "all_gather_into_tensor"), ("reduce_scatter_single", "reduce_scatter_tensor")


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(32, WIDTH, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_BLOCKS))

    def forward(self, rows: Tensor) -> Tensor:
        rows = self.inlet(rows.to(self.inlet.weight.dtype))
        for block in self.blocks:
            rows = block(rows).relu()
        return rows


class BlocksFamily:
    def blocks(self, denoiser: Any) -> tuple[nn.Module, ...]:
        return tuple(denoiser.blocks)


@pytest.fixture
def group() -> Iterator[None]:
    """Eight processes of which only this one exists: collectives return at once."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_DEVICES)
    try:
        yield
    finally:
        dist.destroy_process_group()


def sent_by(sharding: Sharding, shard_devices: int | None, *, in_bf16: bool) -> tuple[Counter[str], Counter[str]]:
    """Bytes of buffers and numbers of collectives of one step."""
    model = Blocks()
    engine = share(
        model,
        BlocksFamily(),  # type: ignore[arg-type]
        sharding,
        torch.device("cpu"),
        shard_devices,
        gathers_in_bf16=in_bf16,
    )
    num_bytes: Counter[str] = Counter()
    counts: Counter[str] = Counter()

    def counted(name: str, label: str) -> Any:
        real = getattr(dist, name)

        def collective(*arguments: Any, **options: Any) -> Any:
            tensors = [one for one in (*arguments, *options.values()) if isinstance(one, Tensor)]
            # The whole buffer: the larger one.
            num_bytes[label] += max(one.nbytes for one in tensors)
            counts[label] += 1
            return real(*arguments, **options)

        return mock.patch.object(dist, name, collective)

    with ExitStack() as patched:
        for label, names in (("gather", GATHERS), ("scatter", SCATTERS), ("sum", ("all_reduce",))):
            for name in (name for name in names if hasattr(dist, name)):
                patched.enter_context(counted(name, label))
        _count_buckets(engine, num_bytes, counts)
        (engine.module or model)(torch.randn(4, 32)).sum().backward()
    return num_bytes, counts


def _count_buckets(engine: Engine, num_bytes: Counter[str], counts: Counter[str]) -> None:
    if engine.module is None:
        return

    def hook(_state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        num_bytes["sum"] += bucket.buffer().nbytes
        counts["sum"] += 1
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    engine.module.register_comm_hook(None, hook)  # type: ignore[operator]


def layout(weight_bytes: int, gradient_bytes: int) -> UnitLayout:
    """Of the blocks above with so many bytes for each number."""
    block, rest = WIDTH * WIDTH, 32 * WIDTH
    return UnitLayout(
        blocks=(Unit(count=NUM_BLOCKS, weight_bytes=block * weight_bytes, gradient_bytes=block * gradient_bytes),),
        outside=Unit(weight_bytes=rest * weight_bytes, gradient_bytes=rest * gradient_bytes),
    )


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("shards", [8, 4])
@pytest.mark.parametrize("in_bf16", [False, True])
def test_sharded_engines(shards: int, in_bf16: bool) -> None:
    is_hybrid = shards < NUM_DEVICES
    num_bytes, counts = sent_by("hybrid" if is_hybrid else "full", shards if is_hybrid else None, in_bf16=in_bf16)
    links = links_of(NUM_DEVICES, shards, EvenSpeed(), Interconnect(domain_devices=8, gbit_per_s=1.0, is_assumed=False))
    expected = sharded_pass(layout(2 if in_bf16 else 4, 4), links)
    found = (num_bytes["gather"] + num_bytes["scatter"]) * (shards - 1) / shards
    copies = NUM_DEVICES // shards
    found += num_bytes["sum"] * 2 * (copies - 1) / copies
    assert found == pytest.approx(expected.sent_bytes)
    assert counts.total() == expected.num_collectives


@pytest.mark.usefixtures("group")
def test_ddp() -> None:
    num_bytes, counts = sent_by("none", None, in_bf16=False)
    links = links_of(NUM_DEVICES, 1, EvenSpeed(), Interconnect(domain_devices=8, gbit_per_s=1.0, is_assumed=False))
    expected = bucketed(layout(4, 4), links)
    assert num_bytes["sum"] * 2 * 7 / 8 == pytest.approx(expected.sent_bytes)
    assert counts.total() == expected.num_collectives == 1


def buckets_by_step(module: nn.Module, width: int) -> list[list[list[int]]]:
    """The weights in each bucket, by their places in the model, for two steps."""
    places = {id(weight): place for place, weight in enumerate(module.parameters())}
    found: list[list[list[int]]] = []

    def hook(_state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        found[-1].append(sorted(places[id(weight)] for weight in bucket.parameters()))
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    module.register_comm_hook(None, hook)  # type: ignore[operator]
    for _ in range(2):
        found.append([])
        module(torch.randn(1, width)).sum().backward()
    return found


@pytest.mark.usefixtures("group")
def test_ddp_has_the_same_buckets_in_its_first_step_as_later() -> None:
    """A resumed run begins with another step: in other buckets its sums over many ranks would be rounded differently.

    The last layers' gradients are sent first, while the others are computed.
    """
    num_layers, width = 6, 512  # 1 MiB each, as large as torch's first bucket

    def layers() -> nn.Module:
        return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(num_layers)))

    plain = nn.parallel.DistributedDataParallel(layers(), init_sync=False)
    first, second = buckets_by_step(plain, width)
    assert first != second, "torch forms buckets after the first step"
    engine = share(layers(), BlocksFamily(), "none", torch.device("cpu"))  # type: ignore[arg-type]
    assert engine.module is not None
    first, second = buckets_by_step(engine.module, width)
    assert first == second == [[num_layers - 1], [*range(num_layers - 1)]]
