"""What the loop costs: steps/s of a Foretune training against a bare PyTorch loop on the same model and data.

The bare loop is what one would write by hand: latents and captions in memory, random noise, forward, backward,
clipping, AdamW; no checkpoint, no log, no validation. Both run in turns in one process (A B A B ...), so that a slow
moment of the machine hits both, on one thread, and the processor time is given beside the wall time: on a machine that
others use too, it is the steadier of the two.

    python benchmarks/loop_overhead.py [--rounds 10] [--steps 20] [--resolution 64]
"""

import argparse
import statistics
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
from foretune.training.session import Session


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


def experiment(work: Path, steps: int, batch_size: int, resolution_px: int = 64) -> dict[str, object]:
    return {
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

    def __init__(self, prepared: Prepared) -> None:
        self.family, self.denoiser = prepared.family, prepared.step.denoiser
        self.batch_size = prepared.experiment.train.batch_size
        batches = list(loader(prepared.batch_maker, 0, prepared.batch_maker.order.num_steps_per_epoch))
        self.moments = torch.cat([b.moments for b in batches if b.moments is not None])
        self.conditioning = {
            name: torch.cat([b.conditioning[name] for b in batches if b.conditioning is not None])
            for name in batches[0].conditioning or {}
        }
        self.optimizer = torch.optim.AdamW(self.denoiser.parameters(), lr=1e-4)

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


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--rounds", type=int, default=10)
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--batch-size", type=int, default=16)
    arguments.add_argument("--resolution", type=int, default=64, help="side of the images in pixels")
    asked = arguments.parse_args()
    quieten()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        write_tiny_pipeline("flux", work / "tiny")
        steps = (asked.rounds + 1) * asked.steps
        request = understand(experiment(work, steps, asked.batch_size, asked.resolution), source="benchmark")
        folder, _ = locate(request.model)
        ours = ProductLoop(prepare(request.experiment, folder, Observer()), work)
        bare = BareLoop(prepare(request.experiment, folder, Observer()))
        rounds = []
        for number in range(asked.rounds + 1):
            if number % 2:  # who goes first takes turns too
                pair = (bare.round(asked.steps), ours.round(asked.steps))
            else:
                second = ours.round(asked.steps)
                pair = (bare.round(asked.steps), second)
            if number:  # the first round warms both up
                rounds.append(pair)
                print(f"round {number}: " + ", ".join(f"{asked.steps / took.wall_s:.1f} steps/s" for took in pair))
    print(f"bare loop first; {len(rounds)} rounds of {asked.steps} steps each, one thread")
    say("wall time", [one.wall_s / other.wall_s for one, other in rounds])
    say("processor time", [one.processor_s / other.processor_s for one, other in rounds])


def say(what: str, ratios: list[float]) -> None:
    low, _, high = statistics.quantiles(ratios, n=4)
    print(
        f"by {what}: {statistics.median(ratios):.3f} of the bare loop's steps/s (middle half {low:.3f} to {high:.3f})"
    )


if __name__ == "__main__":
    main()
