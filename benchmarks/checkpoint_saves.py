"""How long a training stands still for a checkpoint, and how large it is: a model of 300 million weights on two
processes with FSDP2, saved before the training goes on and beside it, in turns. Beside each, what the plan says.

    python benchmarks/checkpoint_saves.py                 # about ten minutes and 12 GiB of memory
    python benchmarks/checkpoint_saves.py --width 64      # a first look, with a small model
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FORETUNE = (sys.executable, "-m", "foretune")
_DEVICES = 2
_STEPS = 4


def make_model(folder: Path, width: int) -> int:
    """A pipeline with one large UNet; returns its number of weights."""
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    unet = UNet2DModel(
        sample_size=32,
        block_out_channels=(width, 2 * width, 4 * width, 4 * width),
        layers_per_block=2,
        down_block_types=("DownBlock2D",) * 4,
        up_block_types=("UpBlock2D",) * 4,
    )
    DDPMPipeline(unet, DDPMScheduler()).save_pretrained(folder)
    return int(sum(weight.numel() for weight in unet.parameters()))


def experiment(model: Path, work: Path) -> Path:
    path = work / "saves.json"
    content = {
        "model": str(model),
        "method": {"kind": "full"},
        "data": {"kind": "shapes", "num_samples": 8, "resolution": 32, "cache_dir": str(work / "cache")},
        "train": {"steps": _STEPS, "batch_size": 1, "precision": "fp32"},
        "optimizer": {"lr": 1e-5},
        "validate": {"num_held_out": 0},
        "save": {"every": 1, "keep": 1},
        "parallel": {"device": "cpu", "devices": _DEVICES, "sharding": "full"},
    }
    path.write_text(json.dumps(content))
    return path


def trained(path: Path, work: Path, name: str, *overrides: str) -> Path:
    """The directory of a run."""
    runs = work / "runs"
    command = (*FORETUNE, "train", str(path), f"name={name}", *overrides, "--runs", str(runs))
    subprocess.run(command, check=True, stdout=sys.stderr)
    return (runs / name / "latest").resolve()


def stood_still_s(run: Path) -> Iterator[float]:
    """Seconds of each save but the first, in which libraries are loaded, and the last, after which nothing is done."""
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    pauses = [line["phases_s"]["save"] for line in lines if line["kind"] == "paused" and "save" in line["phases_s"]]
    yield from pauses[1:-1]


def size_of(run: Path) -> int:
    newest = max((run / "checkpoints").iterdir())
    return sum(file.stat().st_size for file in newest.iterdir())


def planned_bytes(path: Path) -> int:
    """Of one checkpoint; while the newest is written, there is one more than is kept."""
    import foretune as ft

    (plan,) = ft.plan(str(path), on=["h100-sxm"])
    (disk,) = [phase.disk_bytes for phase in plan.phases if phase.phase == "saving"]
    assert disk is not None
    return disk // 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=224, help="channels of the first blocks [default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        num_weights = make_model(work / "model", asked.width)
        path = experiment(work / "model", work)
        times: dict[str, list[float]] = {"synchronous": [], "asynchronous": []}
        sizes: list[int] = []
        for number in range(asked.rounds):
            for kind in times:
                run = trained(path, work, f"{kind}-{number}", f"save.asynchronous={json.dumps(kind[0] == 'a')}")
                times[kind] += stood_still_s(run)
                sizes.append(size_of(run))
        medians = {kind: statistics.median(measured) for kind, measured in times.items()}
        figures: dict[str, Any] = {
            "weights": num_weights,
            "seconds": times,
            "median_s": medians,
            "ratio": medians["asynchronous"] / medians["synchronous"],
            "checkpoint_bytes": sizes,
            "planned_bytes": planned_bytes(path),
        }
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
