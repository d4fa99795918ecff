"""What every process of a run must have in common before its first step, and the line that says how they share it."""

from collections.abc import Mapping
from typing import Any

from foretune.choices.running import ENGINES
from foretune.core.errors import UserError
from foretune.core.units import bytes_text
from foretune.step.engine import own_part
from foretune.training.preparing import Prepared

_ALIKE = {
    "question_hash": "experiment, data or model",
    "num_steps": "number of steps",
    "samples_per_step": "global batch",
    "sharding": "parallel.sharding",
    "num_threads": "number of CPU threads",
    "device_type": "type of device",
}


class UnlikeProcesses(UserError):
    """Processes of one run that would not train the same model."""


def check_alike(prepared: Prepared) -> None:
    """Raises UnlikeProcesses where processes would train different things."""
    found = prepared.ranks.from_all(_facts(prepared))
    for key, what in _ALIKE.items():
        values = {str(one[key]): rank for rank, one in reversed(list(enumerate(found)))}
        if len(values) > 1:
            listed = ", ".join(f"process {rank}: {value}" for value, rank in sorted(values.items(), key=lambda v: v[1]))
            raise UnlikeProcesses(f"The processes of this run differ in their {what} ({listed}).")


def _facts(prepared: Prepared) -> dict[str, Any]:
    effective: Mapping[str, Any] = prepared.effective
    return {
        "question_hash": effective["question_hash"],
        "num_steps": effective["num_steps"],
        "samples_per_step": effective["samples_per_step"],
        "num_threads": effective["num_threads"],
        "sharding": prepared.experiment.parallel.sharding,
        "device_type": prepared.device.type,
    }


def parallel_text(prepared: Prepared) -> str:
    """How many processes there are, how they talk, and which part of the weights this one holds."""
    import torch.distributed as dist

    weights = [parameter.detach() for parameter in prepared.step.denoiser.parameters()]
    all_bytes = sum(weight.numel() * weight.element_size() for weight in weights)
    own_bytes = sum(part.numel() * part.element_size() for part in map(own_part, weights))
    ranks, sharding = prepared.ranks, prepared.experiment.parallel.sharding
    engine = ENGINES[sharding]
    if sharding == "none":
        share = f"each holds all {bytes_text(all_bytes)} of weights"
    else:
        share = f"the first holds {bytes_text(own_bytes)} of {bytes_text(all_bytes)} of weights"
    train = prepared.experiment.train
    batch = f"{train.batch_size} x {ranks.size} processes"
    if train.gradient_accumulation > 1:
        batch += f" x {train.gradient_accumulation} accumulated"
    # "gloo", or "cpu:gloo,cuda:nccl" where the host's tensors travel by another library.
    backend = dist.get_backend().rpartition(f"{prepared.device.type}:")[2].partition(",")[0]
    return (
        f"{ranks.size} processes on {prepared.device.type} ({backend}, started by {ranks.started_by}), "
        f"{engine}: {share}. Global batch: {prepared.effective['samples_per_step']} = {batch}."
    )
