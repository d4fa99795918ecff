"""What an executor gives to the trial of an experiment."""

from functools import cache

from foretune.choices.running import Parallel
from foretune.choices.sweep import SweepResources
from foretune.executors.task import Resources
from foretune.record.accelerators import accelerators_here


def resources_of(parallel: Parallel, chosen: SweepResources | None = None, *, is_here: bool) -> Resources:
    """As chosen; otherwise the experiment's devices, where it is not for a CPU."""
    chosen = chosen or SweepResources()
    num_devices = chosen.devices
    if num_devices is None:
        uses_accelerator = parallel.device != "cpu" and (not is_here or _has_accelerator())
        num_devices = -(-parallel.devices // chosen.nodes) if uses_accelerator else 0
    # On one node the trial starts the processes of its devices itself.
    num_processes = None if chosen.nodes == 1 else -(-parallel.devices // chosen.nodes)
    return Resources(num_devices=num_devices, num_nodes=chosen.nodes, num_cpus=chosen.cpus, num_processes=num_processes)


@cache
def _has_accelerator() -> bool:
    """Whether this machine has one that the local executor gives to a task."""
    return any(device.kind in ("cuda", "rocm") for device in accelerators_here())
