"""The simulated NCCL in torch.distributed's place for it."""

from types import ModuleType
from typing import Any


def install(torch: ModuleType, sim: Any) -> None:
    """Makes the backend "nccl" gloo on the memory of the simulated devices."""
    import torch.distributed.distributed_c10d as c10d

    class Backend(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, sim.SimulatedNccl)

        def __call__(cls, store: Any, rank: int, size: int, options: Any) -> Any:
            gloo = c10d.ProcessGroupGloo(store, rank, size, timeout=options._timeout)
            return sim.SimulatedNccl(rank, size, gloo, options)

    class ProcessGroupNCCL(metaclass=Backend):
        Options = sim.Options

    for module in (c10d, torch.distributed):
        vars(module)["ProcessGroupNCCL"] = ProcessGroupNCCL
    c10d._NCCL_AVAILABLE = True
