"""The cells of the resume grid on two simulated GPUs: what is trained, what is on the host, and how it is stopped.

The first 31 rows hold every pair of values that can be together; they were picked row by row, each time the one that
adds most. The others are of FSDP2, which goes together with less.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Self

from foretune.catalog import denoisers
from foretune.config.reading import understand
from foretune.core.errors import UserError
from tests.proofs.resume_cells import METHODS

NUM_STEPS = 5
NUM_STEPS_PER_EPOCH = 3
NUM_HELD_OUT = 2
NUM_DEVICES = 2

_ASKED_MID_EPOCH: dict[int, dict[str, Any]] = {1: {"signal_after": 1}}
_ASKED_AT_EPOCH_END: dict[int, dict[str, Any]] = {0: {"signal_after": 2}}
STOPS: dict[str, tuple[Mapping[int, Mapping[str, Any]], ...]] = {
    "asked-mid-epoch": (_ASKED_MID_EPOCH,),
    "asked-at-epoch-end": (_ASKED_AT_EPOCH_END,),
    "dies-after-step": ({0: {"die_after": 3}, 1: {"die_after": 3}},),
    "dies-in-window": ({0: {"die_in": (3, 1)}, 1: {"die_in": (3, 1)}},),
    "twice": (_ASKED_AT_EPOCH_END, {0: {"die_after": 4}, 1: {"die_after": 4}}),
}
"""What happens in each start of a run, by rank. One process is asked to stop, and both do; both die."""
RESUMED_AFTER: dict[str, tuple[int, ...]] = {
    "asked-mid-epoch": (2,),
    "asked-at-epoch-end": (3,),
    "dies-after-step": (2,),
    "dies-in-window": (2,),
    "twice": (3, 4),
}
"""Steps that are done where each resumed start begins. Two processes make one more after a request to stop."""
_PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "bf16-weights": {"precision": "bf16", "weight_dtype": "bf16"},
}
_ON_HOST: dict[str, dict[str, Any]] = {
    "-": {},
    "swap": {"block_swap": 2},
    "optimizer": {"optimizer_offload": True},
    "activations": {"activation_offload": True},
    "swap+optimizer": {"block_swap": 2, "optimizer_offload": True},
    "all": {"block_swap": 2, "optimizer_offload": True, "activation_offload": True},
}


@dataclass(frozen=True)
class Cell:
    """One row of the table; values are kept as they stand there."""

    engine: str
    family: str
    method: str
    precision: str
    on_host: str
    ema: str
    accumulation: str
    save: str
    stop: str

    @classmethod
    def from_row(cls, row: str) -> Self:
        return cls(*row.split())

    def values(self) -> tuple[str, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def experiment(self, model: str, cache: str) -> dict[str, Any]:
        """An epoch is three steps, so that a run can be stopped at the end of one."""
        accumulation = int(self.accumulation)
        num_train = NUM_STEPS_PER_EPOCH * NUM_DEVICES * accumulation
        return {
            "name": "cell",
            "model": model,
            "method": METHODS[self.method],
            "data": {
                "kind": "shapes",
                "num_samples": num_train + NUM_HELD_OUT,
                "held_out": NUM_HELD_OUT / (num_train + NUM_HELD_OUT),
                "resolution": 32,
                "cache_dir": cache,
                "max_text_tokens": 16,
                "flip": 0.5,
                "caption_dropout": 0.3,
            },
            "train": {
                "steps": NUM_STEPS,
                "batch_size": 1,
                "gradient_accumulation": accumulation,
                "ema": None if self.ema == "-" else {"decay": 0.9},
                **_PRECISIONS[self.precision],
            },
            "optimizer": {"lr": 1e-3, "schedule": "cosine", "warmup_steps": 2},
            "levers": {
                "gradient_checkpointing": 1.0,
                "ema_offload": self.ema == "host",
                **_ON_HOST[self.on_host],
            },
            "validate": {"every": 2, "num_held_out": NUM_HELD_OUT},
            "save": {"every": 2, "keep": 1, "asynchronous": self.save == "background"},
            "parallel": {
                "device": "cuda",
                "devices": NUM_DEVICES,
                "sharding": "full" if self.engine == "FSDP2" else "none",
            },
        }

    def is_possible(self) -> bool:
        """Whether Foretune takes the experiment, and a pass inside an accumulation window is there to stop in."""
        if self.stop == "dies-in-window" and self.accumulation == "1":
            return False
        return _is_taken(replace(self, accumulation="1", save="at-once", stop="twice"))


@cache
def _is_taken(cell: Cell) -> bool:
    model = next(name for name, denoiser in denoisers().items() if denoiser.family == cell.family)
    try:
        understand(cell.experiment(model, "cache"), source=None)
    except UserError:
        return False
    return True


TABLE = """
engine family method       precision    on_host        ema  accumulation save       stop
DDP    sd3    lora         bf16-weights swap+optimizer ema  2            at-once    asked-mid-epoch
DDP    flux   full         fp16         activations    -    1            background twice
FSDP2  flux   lora-dropout bf16         -              -    2            background dies-after-step
DDP    sd3    full         bf16         optimizer      host 1            at-once    asked-at-epoch-end
DDP    sd3    lora-dropout fp32         all            host 2            background dies-in-window
FSDP2  flux   lora         fp32         -              ema  1            at-once    asked-mid-epoch
DDP    sd3    lora-dropout fp16         swap           -    1            at-once    dies-after-step
DDP    flux   lora         bf16-weights swap           host 1            background asked-at-epoch-end
FSDP2  sd3    full         bf16-weights -              ema  2            background twice
DDP    flux   lora         fp16         optimizer      ema  2            at-once    dies-in-window
DDP    sd3    lora-dropout bf16-weights activations    ema  2            at-once    dies-in-window
DDP    flux   lora         bf16         all            ema  1            at-once    twice
DDP    flux   lora-dropout fp32         swap+optimizer -    1            at-once    asked-at-epoch-end
DDP    sd3    lora-dropout fp32         optimizer      -    2            background asked-mid-epoch
DDP    flux   full         fp16         -              host 2            at-once    asked-mid-epoch
DDP    flux   full         fp32         activations    host 2            background dies-after-step
DDP    sd3    lora         bf16-weights all            -    1            at-once    dies-after-step
DDP    flux   lora-dropout fp32         swap           host 2            at-once    twice
DDP    sd3    lora         bf16         activations    ema  2            background asked-at-epoch-end
DDP    sd3    lora         bf16         swap+optimizer -    2            background dies-in-window
DDP    sd3    lora         bf16         swap           ema  1            at-once    asked-mid-epoch
DDP    sd3    lora         fp16         swap+optimizer host 1            background twice
DDP    sd3    lora         fp16         all            -    1            background asked-at-epoch-end
FSDP2  flux   full         bf16         -              -    2            background dies-in-window
DDP    sd3    full         bf16-weights optimizer      ema  1            at-once    dies-after-step
FSDP2  flux   full         fp32         -              -    1            at-once    asked-at-epoch-end
DDP    flux   lora         fp32         optimizer      host 2            at-once    twice
DDP    sd3    lora         fp16         swap+optimizer ema  2            at-once    dies-after-step
DDP    sd3    full         bf16-weights activations    ema  2            background asked-mid-epoch
DDP    sd3    lora         fp16         all            -    1            background asked-mid-epoch
DDP    flux   lora-dropout bf16         swap           host 2            at-once    dies-in-window
FSDP2  flux   full         fp32         -              -    1            background twice
FSDP2  flux   full         bf16         -              ema  1            at-once    dies-after-step
FSDP2  sd3    full         fp32         -              ema  1            background asked-at-epoch-end
FSDP2  sd3    full         bf16-weights -              ema  1            background asked-mid-epoch
FSDP2  flux   lora-dropout fp32         -              ema  2            background asked-mid-epoch
"""

CELLS = tuple(Cell.from_row(row) for row in TABLE.strip().splitlines()[1:])
