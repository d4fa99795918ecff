"""The cells of the resume grid: which training is stopped how.

Eleven choices have half a million combinations; what breaks a resume is one choice or two or three that meet. The
first 22 rows hold every pair of values that can be together, all rows every triple; a test counts them. They were
picked row by row, each time the one of many drawn at random that adds most.
"""

from dataclasses import dataclass, fields
from typing import Any, Self

NUM_STEPS = 5
NUM_STEPS_PER_EPOCH = 3
SAVE_EVERY = 2
BATCH_SIZE = 2
NUM_HELD_OUT = 2

RESUMED_AFTER: dict[str, tuple[int, ...]] = {
    "asked-mid-epoch": (1,),
    "asked-at-epoch-end": (3,),
    "dies-after-step": (2,),
    "dies-in-window": (2,),
    "twice": (3, 4),
}
"""By kind of stop: the steps that are done where each resumed process begins. A process that is asked saves first."""

_SIZES_PX = {"flux": 64, "sd3": 64, "ddpm": 16}
METHODS: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "lora": {"kind": "lora", "rank": 4, "alpha": 6},
    "lora-dropout": {"kind": "lora", "rank": 4, "alpha": 6, "dropout": 0.3},
}


@dataclass(frozen=True)
class Cell:
    """One row of the table; values are kept as they stand there."""

    family: str
    method: str
    precision: str
    accumulation: str
    ema: str
    workers: str
    checkpointed: str
    schedule: str
    encoders: str
    validation: str
    stop: str

    @classmethod
    def from_row(cls, row: str) -> Self:
        return cls(*row.split())

    def values(self) -> tuple[str, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def is_possible(self) -> bool:
        """Inside an accumulation window there must be one; pixel models have no encoders."""
        return not (self.stop == "dies-in-window" and self.accumulation == "1") and not (
            self.family == "ddpm" and self.encoders == "live"
        )

    def experiment(self, model: str, cache: str, device: str) -> dict[str, Any]:
        """What is asked for. An epoch is three steps, so that the end of one can be met."""
        accumulation = int(self.accumulation)
        num_train = NUM_STEPS_PER_EPOCH * BATCH_SIZE * accumulation
        is_cached = self.encoders == "cached"
        return {
            "name": "cell",
            "model": model,
            "method": METHODS[self.method],
            "data": {
                "kind": "shapes",
                "num_samples": num_train + NUM_HELD_OUT,
                "held_out": NUM_HELD_OUT / (num_train + NUM_HELD_OUT),
                "resolution": _SIZES_PX[self.family],
                "cache_dir": cache,
                "max_text_tokens": 16,
                "flip": 0.5,
                "num_workers": int(self.workers),
                **({"caption_dropout": 0.3} if self.family != "ddpm" else {}),
            },
            "train": {
                "steps": NUM_STEPS,
                "batch_size": BATCH_SIZE,
                "gradient_accumulation": accumulation,
                "precision": self.precision,
                "ema": {"decay": 0.9} if self.ema == "ema" else None,
            },
            "optimizer": {"lr": 1e-3, "schedule": self.schedule, "warmup_steps": 2},
            "levers": {
                "gradient_checkpointing": float(self.checkpointed),
                "cache_latents": is_cached,
                "cache_text": is_cached,
            },
            "validate": {"every": 2, "num_held_out": NUM_HELD_OUT if self.validation == "validates" else 0},
            "save": {"every": SAVE_EVERY, "keep": 1},
            "parallel": {"device": device},
        }


TABLE = """
family method       precision accumulation ema workers checkpointed schedule encoders validation stop
flux   full         bf16      1            ema 2       0.5          cosine   cached   -          asked-mid-epoch
sd3    lora         fp32      3            -   0       0            constant live     -          asked-at-epoch-end
ddpm   lora-dropout fp16      3            ema 0       0            linear   cached   validates  dies-after-step
flux   lora-dropout fp32      1            -   2       0.5          linear   live     validates  twice
sd3    lora         bf16      3            ema 2       0            cosine   live     validates  dies-in-window
ddpm   lora         fp16      1            -   2       0.5          constant cached   -          dies-after-step
flux   full         fp16      3            -   0       0            constant live     validates  asked-mid-epoch
ddpm   full         fp32      3            ema 0       0.5          cosine   cached   -          twice
sd3    lora-dropout bf16      1            ema 0       0            linear   live     -          twice
sd3    lora-dropout fp16      1            ema 0       0.5          cosine   cached   validates  asked-at-epoch-end
sd3    full         fp32      3            -   2       0            linear   cached   -          asked-mid-epoch
flux   lora-dropout bf16      3            -   0       0.5          constant cached   validates  dies-in-window
flux   full         fp32      1            -   0       0            cosine   live     -          dies-after-step
ddpm   full         bf16      1            ema 2       0            constant cached   validates  asked-at-epoch-end
flux   lora         fp16      3            ema 2       0.5          linear   live     -          twice
flux   lora         fp32      1            ema 2       0            constant cached   validates  twice
ddpm   full         fp32      3            -   2       0            linear   cached   -          dies-in-window
flux   lora         bf16      3            -   0       0.5          linear   cached   validates  asked-at-epoch-end
ddpm   lora         fp32      1            -   0       0.5          cosine   cached   validates  asked-mid-epoch
sd3    lora-dropout fp32      3            ema 2       0.5          constant live     -          asked-mid-epoch
sd3    lora-dropout fp16      3            -   2       0            cosine   live     -          dies-in-window
sd3    full         bf16      1            ema 2       0.5          linear   live     validates  dies-after-step
flux   lora-dropout bf16      1            -   2       0            constant live     -          asked-at-epoch-end
sd3    full         fp16      1            -   2       0            cosine   cached   validates  twice
sd3    lora         bf16      1            ema 0       0            constant live     validates  asked-mid-epoch
sd3    lora         fp32      3            -   0       0.5          cosine   cached   validates  dies-after-step
ddpm   lora-dropout bf16      3            -   2       0            cosine   cached   -          asked-mid-epoch
flux   lora-dropout fp32      3            ema 0       0.5          linear   live     -          dies-in-window
ddpm   lora         fp16      3            ema 2       0            cosine   cached   -          asked-at-epoch-end
sd3    full         bf16      3            -   0       0.5          constant cached   validates  twice
ddpm   lora-dropout fp32      1            ema 2       0.5          linear   cached   validates  asked-at-epoch-end
flux   lora-dropout bf16      3            ema 2       0            cosine   live     -          dies-after-step
flux   full         fp16      1            -   0       0.5          linear   live     -          asked-at-epoch-end
sd3    lora         fp16      3            ema 0       0            constant cached   -          dies-in-window
ddpm   lora         fp16      1            ema 2       0.5          linear   cached   -          asked-mid-epoch
flux   full         fp16      3            ema 2       0.5          cosine   live     validates  dies-in-window
flux   lora-dropout fp16      1            -   0       0.5          constant cached   validates  dies-after-step
ddpm   lora         bf16      1            -   0       0            constant cached   -          twice
sd3    lora         fp32      1            ema 2       0            constant live     -          dies-after-step
ddpm   lora         fp32      3            -   0       0.5          cosine   cached   validates  dies-in-window
ddpm   lora-dropout fp16      3            ema 2       0            constant cached   -          twice
flux   lora-dropout bf16      1            ema 0       0            linear   live     validates  asked-mid-epoch
flux   full         fp32      1            -   2       0.5          cosine   live     validates  asked-at-epoch-end
flux   lora         fp32      3            -   2       0            linear   cached   -          dies-after-step
sd3    full         fp32      3            -   2       0.5          constant live     validates  dies-in-window
flux   full         bf16      1            ema 0       0.5          cosine   live     validates  twice
ddpm   full         bf16      1            ema 2       0            constant cached   -          dies-after-step
ddpm   lora         bf16      3            ema 0       0.5          linear   cached   validates  dies-in-window
sd3    lora         fp16      1            ema 2       0            linear   live     validates  asked-at-epoch-end
sd3    lora         fp16      3            -   2       0            cosine   live     validates  asked-mid-epoch
ddpm   full         fp16      1            ema 0       0.5          linear   cached   validates  twice
sd3    lora-dropout fp16      3            -   2       0.5          constant live     validates  dies-after-step
flux   lora         fp32      1            ema 0       0            cosine   cached   -          asked-mid-epoch
ddpm   full         fp32      3            -   2       0.5          constant cached   validates  asked-mid-epoch
sd3    full         fp16      3            -   0       0.5          constant live     validates  asked-at-epoch-end
sd3    lora-dropout fp32      3            -   2       0            cosine   live     validates  twice
ddpm   lora         bf16      3            -   0       0.5          cosine   cached   validates  dies-after-step
sd3    full         bf16      3            ema 0       0            cosine   cached   -          dies-in-window
ddpm   lora-dropout fp16      3            -   0       0            constant cached   -          asked-at-epoch-end
sd3    lora         bf16      3            ema 2       0.5          constant live     -          twice
ddpm   lora-dropout fp16      3            ema 0       0.5          constant cached   validates  dies-in-window
flux   lora         fp16      3            -   2       0            linear   cached   -          dies-in-window
flux   full         fp16      3            ema 2       0.5          cosine   cached   -          dies-after-step
sd3    full         bf16      3            -   0       0            cosine   cached   validates  asked-at-epoch-end
ddpm   lora-dropout fp32      3            ema 0       0            linear   cached   validates  dies-after-step
flux   lora-dropout fp16      1            -   2       0            constant live     -          asked-mid-epoch
sd3    lora         fp32      3            ema 0       0            linear   live     -          dies-in-window
flux   lora         bf16      3            ema 0       0            cosine   cached   -          asked-at-epoch-end
ddpm   lora         fp16      3            ema 0       0            cosine   cached   validates  twice
ddpm   full         fp32      3            ema 0       0.5          constant cached   validates  dies-in-window
flux   full         bf16      3            ema 0       0            cosine   live     -          asked-at-epoch-end
flux   full         fp32      3            -   2       0.5          constant live     validates  twice
flux   full         fp16      1            ema 2       0.5          constant live     validates  dies-after-step
ddpm   full         fp32      1            ema 0       0.5          linear   cached   validates  dies-after-step
sd3    lora-dropout fp32      3            -   0       0            constant live     validates  twice
sd3    full         bf16      1            ema 0       0.5          constant live     -          asked-mid-epoch
ddpm   full         fp16      1            ema 0       0.5          linear   cached   validates  asked-mid-epoch
flux   lora-dropout fp16      3            -   0       0            linear   live     validates  twice
flux   full         fp32      3            ema 2       0            cosine   live     validates  asked-mid-epoch
ddpm   lora         bf16      1            ema 0       0            constant cached   -          twice
sd3    full         fp32      1            -   0       0.5          constant cached   validates  asked-mid-epoch
ddpm   lora-dropout fp32      1            ema 2       0            cosine   cached   -          asked-mid-epoch
flux   full         fp16      3            ema 2       0            linear   cached   -          dies-in-window
flux   lora         fp16      3            -   2       0.5          linear   live     -          dies-after-step
"""

CELLS = tuple(Cell.from_row(row) for row in TABLE.strip().splitlines()[1:])
