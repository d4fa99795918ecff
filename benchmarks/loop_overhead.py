"""What the loop costs: steps/s of a Foretune training against a bare PyTorch loop on the same model and data.

The bare loop is what one would write by hand: latents and captions in memory, random noise, forward, backward,
clipping, AdamW; no checkpoint, no log, no validation. Both run in turns in one process (A B A B ...), so that a slow
moment of the machine hits both, on one thread, and the processor time is given beside the wall time: on a machine that
others use too, it is the steadier of the two.

    python benchmarks/loop_overhead.py [--rounds 10] [--steps 20] [--resolution 64]
    python benchmarks/loop_overhead.py --processes 2 --sharding full      # against bare FSDP2; none: bare DDP
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import nn

from foretune.cli.quiet import quieten
from foretune.config.reading import understand
from foretune.core.observer import Observer
from foretune.data.loading import loader
from foretune.models.locating import locate
from foretune.models.tiny import write_tiny_pipeline
from foretune.record.run_directory import RunDirectory
from foretune.training.preparing import Prepared, prepare
from foretune.training.ranks import ALONE, STORE_VARIABLE, Ranks, found_ranks, joined
from foretune.training.session import Session

_WORK = "LOOP_OVERHEAD_FOLDER"


@dataclass(frozen=True)
class Took:
    """Time as the wall and as the processor count it."""

    wall_s: float
    processor_s: float

    @classmethod
    def now(cls) -> "Took":
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, other: "Took") -> "Took":
        return Took(self.wall_s - other.wall_s, self.processor_s - other.processor_s)


def experiment(
    work: Path, steps: int, batch_size: int, resolution_px: int = 64, **parallel: object
) -> dict[str, object]:
    return {
        "parallel": {"device": "cpu", **parallel},
        "model": str(work / "tiny"),
        "method": {"kind": "full"},
        "data": {
            "kind": "shapes",
            "num_samples": 256,
            "resolution": resolution_px,
            "cache_dir": str(work / "cache"),
            "max_text_tokens": 16,
            "held_out": 0.0,
        },
        "train": {"steps": steps, "batch_size": batch_size, "precision": "fp32"},
        "optimizer": {"lr": 1e-4},
        "validate": {"num_held_out": 0},
    }


class ProductLoop:
    """The product's loop, one round at a time; its final checkpoint is left out of the time."""

    def __init__(self, prepared: Prepared, work: Path) -> None:
        run = RunDirectory.create(work / "runs", "bench")
        self.loop = Session(run, prepared, Observer(), steps_only=True).loop
        self.steps = self.loop.steps(0)

    def round(self, num_steps: int) -> Took:
        began = Took.now()
        for _ in islice(self.steps, num_steps):
            pass
        return Took.now() - began


class BareLoop:
    """The same model and samples without anything around them."""

    def __init__(self, prepared: Prepared, sharding: str | None) -> None:
        self.family = prepared.family
        self.denoiser = _shared(prepared, sharding)
        self.batch_size = prepared.experiment.train.batch_size
        batches = list(loader(prepared.batch_maker, 0, prepared.batch_maker.order.num_steps_per_epoch))
        self.moments = torch.cat([b.moments for b in batches if b.moments is not None])
        self.conditioning = {
            name: torch.cat([b.conditioning[name] for b in batches if b.conditioning is not None])
            for name in batches[0].conditioning or {}
        }
        # As in the product: otherwise the optimizers would be compared, not the loops.
        self.optimizer = torch.optim.AdamW(self.denoiser.parameters(), lr=1e-4, fused=True)

    def round(self, num_steps: int) -> Took:
        began = Took.now()
        for _ in range(num_steps):
            chosen = torch.randint(len(self.moments), (self.batch_size,))
            mean, log_variance = self.moments[chosen].chunk(2, dim=1)
            clean = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
            noise, sigma = torch.randn_like(clean), torch.rand(self.batch_size)
            mix = sigma.view(-1, 1, 1, 1)
            predicted = self.family.predict(
                self.denoiser,
                (1 - mix) * clean + mix * noise,
                sigma * 1000,
                {name: tensor[chosen] for name, tensor in self.conditioning.items()},
                guidance_scale=3.5,
            )
            loss = (predicted - (noise - clean)).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(self.denoiser.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return Took.now() - began


def _shared(prepared: Prepared, sharding: str | None) -> nn.Module:
    """The denoiser as torch's own engine shares it, with as few lines as possible; alone, as it is."""
    denoiser = prepared.step.denoiser
    if sharding == "none":
        return nn.parallel.DistributedDataParallel(denoiser, gradient_as_bucket_view=True)
    if sharding == "full":
        from torch.distributed.fsdp import fully_shard

        for block in prepared.family.blocks(denoiser):
            fully_shard(block)
        fully_shard(denoiser)
    return denoiser


def start_processes(size: int) -> None:
    """This program once for each rank, on one folder."""
    with tempfile.TemporaryDirectory() as scratch:
        write_tiny_pipeline("flux", Path(scratch) / "tiny")
        shared = {"WORLD_SIZE": str(size), STORE_VARIABLE: f"{scratch}/store", _WORK: scratch, "OMP_NUM_THREADS": "1"}
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"} for rank in range(size)]
        started = [subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **shared, **own}) for own in ranks]
        ends = [process.wait() for process in started]
        if any(ends):
            sys.exit("A process failed.")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--rounds", type=int, default=10)
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--batch-size", type=int, default=16)
    arguments.add_argument("--resolution", type=int, default=64, help="side of the images in pixels")
    arguments.add_argument("--processes", type=int, default=1)
    arguments.add_argument("--sharding", choices=("none", "full"), default="none")
    asked = arguments.parse_args()
    quieten()
    torch.set_num_threads(1)
    ranks = found_ranks()
    if asked.processes > 1 and ranks is None:
        start_processes(asked.processes)
        return
    if ranks is not None:
        compare(asked, Path(os.environ[_WORK]), ranks)
        return
    with tempfile.TemporaryDirectory() as scratch:
        write_tiny_pipeline("flux", Path(scratch) / "tiny")
        compare(asked, Path(scratch), ALONE)


def compare(asked: argparse.Namespace, work: Path, ranks: Ranks) -> None:
    steps = (asked.rounds + 1) * asked.steps
    sizes = (steps, asked.batch_size, asked.resolution)
    alone = understand(experiment(work, *sizes), source="benchmark")
    shared = understand(experiment(work, *sizes, devices=ranks.size, sharding=asked.sharding), source="benchmark")
    folder, _ = locate(alone.model)
    rounds = []
    with joined(shared.experiment.parallel, ranks, torch.device("cpu")):
        ours = ProductLoop(prepare(shared.experiment, folder, Observer(), ranks), work / f"process-{ranks.rank}")
        # Every process has the same cache.
        ranks.wait()
        bare = BareLoop(prepare(alone.experiment, folder, Observer()), asked.sharding if ranks.size > 1 else None)
        for number in range(asked.rounds + 1):
            if number % 2:  # who goes first takes turns too
                pair = (bare.round(asked.steps), ours.round(asked.steps))
            else:
                second = ours.round(asked.steps)
                pair = (bare.round(asked.steps), second)
            if number:  # the first round warms both up
                rounds.append(pair)
                if ranks.is_first:
                    print(f"round {number}: " + ", ".join(f"{asked.steps / took.wall_s:.1f} steps/s" for took in pair))
    if not ranks.is_first:
        return
    print(f"bare loop first; {len(rounds)} rounds of {asked.steps} steps each, {ranks.size} processes of one thread")
    say("wall time", [one.wall_s / other.wall_s for one, other in rounds])
    say("processor time", [one.processor_s / other.processor_s for one, other in rounds])


def say(what: str, ratios: list[float]) -> None:
    low, _, high = statistics.quantiles(ratios, n=4)
    print(
        f"by {what}: {statistics.median(ratios):.3f} of the bare loop's steps/s (middle half {low:.3f} to {high:.3f})"
    )


if __name__ == "__main__":
    main()
