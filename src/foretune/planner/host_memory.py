"""The host memory that a run needs, and whether the host has it.

The figures are those of the phases (`planner.phases`): weights while they are loaded, offloaded tensors, waiting
batches, the interpreter with its libraries. Added here: the device runtime's share on the host, loader processes, and
the rounding of pinned blocks (`planner.pinned`).

Confidence: loading was measured (see `ERROR_SHARE`), the runtime's share was published by others, and the total has not
been compared with a run on a GPU.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from foretune.catalog.devices import HERE, Device
from foretune.choices.experiment import Experiment
from foretune.core.errors import UserError
from foretune.core.units import GIB, MIB, bytes_of_text, bytes_text
from foretune.core.values.plan import HostMemory
from foretune.planner.overheads import host_runtime, other_programs_on_host
from foretune.planner.phase_memory import Phase
from foretune.planner.verdict import decide
from foretune.record.machine import host_memory_bytes

ERROR_SHARE = 0.1
"""Relative half-width of the band. Loading 851 MiB of bf16 weights took 1 % more than predicted in bf16 and 5 % more in
fp32; twice the larger is assumed to cover what was not measured.
"""

WORKER_BYTES = 380 * MIB
"""A newly started loader process beside a GPU: interpreter and libraries, as the catalogue's `context` of a CPU."""


@dataclass(frozen=True)
class HostBudget:
    """Host memory available to a run, and its uncertainty."""

    usable_bytes: int
    spread_low_bytes: int = 0
    """By how much less other programs may take than assumed."""
    spread_high_bytes: int = 0


def budget_named(text: str, root: Path = Path("/")) -> HostBudget:
    """Parses `here`, what is free on this machine now, or a size, minus what system and programs take of it."""
    if text.strip().lower() == HERE:
        return HostBudget(host_memory_bytes(root)[1])
    size = bytes_of_text(text)
    if size is None:
        raise UserError(f"{text} is not an amount of memory. Run: foretune plan ... --ram 32GiB, or --ram here")
    num_bytes, is_binary = size
    # RAM is sold in units of 2**30, whatever the label says.
    total_bytes = num_bytes if is_binary else round(num_bytes / 10**9 * GIB)
    other = other_programs_on_host()
    usable_bytes, at_best_bytes = (max(0, total_bytes - taken) for taken in (other.likely, other.low))
    return HostBudget(usable_bytes, at_best_bytes - usable_bytes, other.high - other.likely)


def host_memory_of(
    experiment: Experiment | None, phases: tuple[Phase, ...], device: Device, budget: HostBudget | None
) -> HostMemory | None:
    """Returns the host's part of a plan; None if the device shares the host's memory.

    Without an experiment the phases are not of a training: nothing is offloaded, and there are no loader processes.
    """
    if device.kind in ("cpu", "mps"):
        return None
    runtime = host_runtime(device)
    workers_bytes = 0 if experiment is None else experiment.data.num_workers * WORKER_BYTES
    occurring = [phase for phase in phases if phase.occurs]
    peak = max(occurring, key=_phase_bytes)
    own_bytes = _phase_bytes(peak) - peak.pinned_rounding_bytes
    likely = own_bytes + peak.pinned_rounding_bytes + runtime.likely + workers_bytes
    # Pages of files can be dropped, so that another phase may be the one that needs most.
    low = round(max(map(_least_bytes, occurring)) * (1 - ERROR_SHARE)) + runtime.low
    high = round(_phase_bytes(peak) * (1 + ERROR_SHARE)) + runtime.high + workers_bytes
    parts = {
        "process, weights and batches": own_bytes - peak.mapped_bytes,
        "pages of weight files": peak.mapped_bytes,
        "rounding of page-locked blocks": peak.pinned_rounding_bytes,
        "runtime of the device": runtime.likely,
        "loader processes": workers_bytes,
    }
    found = HostMemory(
        peak_phase=peak.name,
        bytes_by_part={part: num_bytes for part, num_bytes in parts.items() if num_bytes},
        low_bytes=low,
        likely_bytes=likely,
        high_bytes=high,
    )
    return found if budget is None else _judged(found, experiment, peak, budget)


def _phase_bytes(phase: Phase) -> int:
    return (phase.memory.host_bytes or 0) + phase.pinned_rounding_bytes


def _least_bytes(phase: Phase) -> int:
    """Returns what the phase cannot do without: no pages of files, no rounding of pinned blocks."""
    return (phase.memory.host_bytes or 0) - phase.mapped_bytes


def _judged(found: HostMemory, experiment: Experiment | None, peak: Phase, budget: HostBudget) -> HostMemory:
    low, high = found.low_bytes - budget.spread_low_bytes, found.high_bytes + budget.spread_high_bytes
    verdict = decide(low, found.likely_bytes, high, budget.usable_bytes)
    lacking_bytes = max(0, high - budget.usable_bytes)
    return found.model_copy(
        update={
            "usable_bytes": budget.usable_bytes,
            "verdict": verdict,
            "advice": () if verdict == "fits" else tuple(_advice(experiment, peak, lacking_bytes)),
        }
    )


def _advice(experiment: Experiment | None, peak: Phase, lacking_bytes: int) -> Iterator[str]:
    """Yields what uses host memory in the peak phase and can be switched off, then what always helps."""
    mapped_bytes = round(peak.mapped_bytes * (1 + ERROR_SHARE))
    if experiment is not None:
        yield from _advice_on_levers(experiment, peak)
    if lacking_bytes <= mapped_bytes:
        yield (
            f"{bytes_text(peak.mapped_bytes)} of it are pages of weight files, which the system drops when memory runs "
            "short: loading becomes slower, but does not fail"
        )
    else:
        lacking = bytes_text(lacking_bytes - mapped_bytes)
        yield f"add {lacking} of memory, or a swap file of that size on an SSD"


def _advice_on_levers(experiment: Experiment, peak: Phase) -> Iterator[str]:
    levers = experiment.levers
    if levers.block_swap and peak.pinned_rounding_bytes:
        yield (
            f"lower levers.block_swap={levers.block_swap}, or use quantize.denoiser=nf4: "
            "swapped weights are in memory twice while they are loaded"
        )
    if levers.optimizer_offload:
        yield "levers.optimizer_offload=false keeps fp32 weights and optimizer states on the device"
    if levers.activation_offload:
        yield "levers.activation_offload=false keeps activations on the device"
    if experiment.data.num_workers:
        yield f"data.num_workers=0 saves {bytes_text(experiment.data.num_workers * WORKER_BYTES)}"
