"""What happens around the training: validation, saving, devices, trackers."""

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field

from foretune.choices.section import INCIDENTAL, LATER, Section
from foretune.core.trackers import TRACKER_SPECS

Sharding = Literal["none", "full", "hybrid"]
ENGINES: dict[Sharding, str] = {"none": "DDP", "full": "FSDP2", "hybrid": "HSDP"}
"""What torch calls each way to share a model."""

if TYPE_CHECKING:
    Tracker: TypeAlias = str
else:
    # One of the names in the table, which type checkers cannot read; pydantic checks it.
    Tracker = Literal[tuple(TRACKER_SPECS)]


class Validate(Section):
    """Samples and held-out loss during training. A failed validation does not stop the training."""

    every: Annotated[int | None, INCIDENTAL] = Field(default=None, ge=1)
    """Steps between validations. Left out: only before the first and after the last step."""
    prompts: tuple[str, ...] = ()
    """Prompts to sample; a model without text draws one unconditional sample per entry."""
    num_inference_steps: int = Field(default=28, ge=1)
    """Denoising steps per sample."""
    guidance_scale: float | None = Field(default=None, ge=0)
    """Guidance scale in sampling. Left out: the pipeline's default."""
    num_held_out: int = Field(default=32, ge=0)
    """Number of samples in the held-out loss; 0 turns it off."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the noise of samples and held-out loss."""


class Profile(Section):
    """Profile a few steps of the run. A failed profiler does not stop the training."""

    at_step: int = Field(default=20, ge=1)
    """First profiled step, counted from 1; leave the run time to reach its steady speed."""
    steps: int = Field(default=3, ge=1, le=100)
    """Number of profiled steps."""

    def slows(self, step: int) -> bool:
        """Whether the step of this number, counted from 0, is under the profiler or waits for the trace to be written.

        Such steps say nothing about the speed of the run.
        """
        return self.at_step - 1 <= step <= self.at_step - 1 + self.steps


class Save(Section):
    """How often checkpoints are written, and how many are kept."""

    every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints. Left out: only after the last step."""
    keep: int = Field(default=2, ge=1)
    """Number of checkpoints to keep; older ones are deleted."""
    asynchronous: Annotated[bool, LATER] = False
    """Copy the checkpoint to host memory and write it while the training continues. The copy takes as much host memory
    as the process writes."""


class Parallel(Section):
    """Which device, how many, how they share the model, how many threads."""

    devices: int = Field(default=1, ge=1)
    """Number of devices, over all nodes; one process each. The global batch is train.batch_size times this number."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: an accelerator if there is one, otherwise the CPU."""
    threads: Annotated[int | None, LATER] = Field(default=None, ge=1)
    """Number of CPU threads of each process. Left out: OMP_NUM_THREADS, or torch's default; of several devices of this
    machine, the processors divided by the devices."""
    sharding: Annotated[Sharding, LATER] = "none"
    """none: each device holds the whole model (DDP). full: weights, gradients and optimizer states are sharded over all
    devices (FSDP2). hybrid: sharded inside each group of shard_devices, replicated across the groups (HSDP)."""
    shard_devices: Annotated[int | None, LATER] = Field(default=None, ge=2)
    """Devices of one shard group of hybrid sharding. Left out: the devices of one node."""
    gather_dtype: Annotated[Literal["fp32", "bf16"], LATER] = "bf16"
    """How sharded fp32 weights are gathered in full fine-tuning with train.precision=bf16. bf16: half the traffic and
    no copies by autocast; norms and biases are rounded too. fp32: as on one device."""
    timeout_s: Annotated[float, LATER] = Field(default=600.0, gt=0)
    """Seconds that a process waits for the others before the run is ended."""
    restarts: Annotated[int, LATER] = Field(default=0, ge=0)
    """How often the processes are started again from the last checkpoint after one of them was lost."""
