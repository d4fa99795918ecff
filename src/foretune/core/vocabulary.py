"""Names that several layers share: the phases of a run, the phases of its time, and the parts of its memory.

All are text, as they stand in plans, logs, traces and reports.
"""

from enum import StrEnum
from typing import Literal

SeriesSize = Literal["small", "quick", "full"]
"""Size of a series of studies. small, the default: a stand-in of the model that runs on a CPU. quick: its shortest
form. full: the model and data of the authors."""


class RunPhase(StrEnum):
    """What a run does; a plan says for each what memory it takes."""

    CACHE_LATENTS = "caching latents"
    CACHE_TEXT = "caching text"
    LOAD = "loading"
    STEP = "training step"
    VALIDATE = "validation"
    SAVE = "saving"


class Command(StrEnum):
    """What follows a training, each in a process of its own."""

    EVALUATE = "evaluate"
    SAMPLE = "sample"
    EXPORT = "export"


class CommandPhase(StrEnum):
    """What such a command does."""

    ENCODE_TEXT = "encoding text"
    SAMPLE = "sampling"
    HELD_OUT = "held-out loss"
    WRITE = "writing files"
    CHECK_TEXT = "encoding text for the check"
    CHECK = "sampling for the check"


class InferencePhase(StrEnum):
    """Phases of inference in a plan of it."""

    LOAD = "loading the model"
    ENCODE = "encoding the prompt"
    DENOISE = "denoising"
    DECODE = "decoding"


class TimePhase(StrEnum):
    """Where the time of a run goes: every moment belongs to exactly one."""

    DATA = "data"
    ENCODE = "encode"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    LOGGING = "logging"
    VALIDATION = "validation"
    SAVE = "save"
    OTHER = "other"
    """The loop itself."""


COMPUTING = (TimePhase.FORWARD, TimePhase.BACKWARD, TimePhase.OPTIMIZER)
"""All else is overhead."""


class StepPhase(StrEnum):
    """What one training step does, in a trace of it."""

    INPUTS = "inputs"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class MemoryPart(StrEnum):
    """What memory is taken for."""

    FROZEN_WEIGHTS = "frozen weights"
    TRAINED_WEIGHTS = "trained weights"
    OPTIMIZER_STATE = "optimizer state"
    EMA = "moving average"
    GRADIENTS = "gradients"
    ACTIVATIONS = "activations"
    TEMPORARIES = "temporaries"
    INPUTS = "inputs"
    CAST_WEIGHTS = "cast weights"
    """Low-precision copies that autocast keeps of fp32 weights."""
    SWAPPED_WEIGHTS = "swapped weights"
    """Of blocks that wait on the host, those that are on the device for the moment."""
    GATHERED_WEIGHTS = "gathered weights"
    """Of sharded weights, those that are whole while they are used."""
    COMMUNICATION = "communication buffers"
    """What weights and gradients are sent from and received in."""
    CHECKPOINT_COPY = "copy of a checkpoint"
    """What an asynchronous save writes while the training continues."""
    TEXT_ENCODERS = "text encoders"
    AUTOENCODER = "autoencoder"
    WORKSPACE = "workspace"
    """What a library takes for itself, such as the scratch memory of matrix products."""


WEIGHTS = (MemoryPart.FROZEN_WEIGHTS, MemoryPart.TRAINED_WEIGHTS)
LASTING = (*WEIGHTS, MemoryPart.OPTIMIZER_STATE, MemoryPart.EMA)
"""What outlives a training step."""
