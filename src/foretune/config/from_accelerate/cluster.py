"""Which devices, how many, on how many machines, and the command that starts a process on each."""

import shlex
from dataclasses import dataclass
from typing import Any

from foretune.config.from_accelerate.config_keys import ConfigKeys
from foretune.config.from_accelerate.draft import Draft

_OTHER_DEVICES = {
    "MULTI_XPU": "Intel GPUs (XPU)",
    "MULTI_HPU": "Intel Gaudi (HPU)",
    "MULTI_NPU": "Ascend NPUs",
    "MULTI_MLU": "Cambricon MLUs",
    "MULTI_SDAA": "Tecorigin SDAA devices",
    "MULTI_MUSA": "Moore Threads GPUs (MUSA)",
    "MULTI_NEURON": "AWS Neuron cores",
    "XLA": "TPUs",
    "TPU": "TPUs",
}
"""Types of accelerate whose devices torch drives here not at all."""
_ONE_PROCESS = ("NO", "MPS")
KINDS = (*_ONE_PROCESS, "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED", "MEGATRON_LM", "TP", *_OTHER_DEVICES)
_PORT = 29500


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where the processes run."""

    kind: str
    """distributed_type"""
    devices: int
    machines: int
    start: str
    """The command that starts a training; with several machines, on each of them."""

    @property
    def devices_per_machine(self) -> int:
        return self.devices // self.machines


def read_cluster(keys: ConfigKeys, draft: Draft) -> Cluster:
    """Reads the devices, and sets `parallel.devices` and `parallel.device`."""
    kind = keys.choice("distributed_type", KINDS, "NO")
    machines = keys.integer("num_machines", 1)
    devices = _num_devices(keys, kind)
    if devices % machines:
        keys.problems.append(
            f"{keys.name('num_processes')}: {devices} processes cannot be shared equally by {machines} machines. "
            f"Write a multiple of {machines}"
        )
        machines = 1
    keys.answer("num_processes", "translated", draft.take("parallel.devices", devices))
    _device(keys, kind, draft)
    cluster = Cluster(kind=kind, devices=devices, machines=machines, start=_start(keys, devices, machines))
    _answer_machines(keys, cluster)
    return cluster


def _num_devices(keys: ConfigKeys, kind: str) -> int:
    if kind in _ONE_PROCESS:
        if keys.integer("num_processes", 1, at_least=-1) > 1:
            keys.answer("num_processes", "not needed", f"distributed_type {kind} starts one process")
        return 1
    if keys.get("num_processes") in (None, -1, "-1"):
        found = "is missing" if keys.get("num_processes") is None else "is -1"
        keys.problems.append(
            f"num_processes: {found}, which leaves the number of processes to `accelerate launch`. Write the number "
            f"there, over all machines: num_processes: 8"
        )
        return 1
    return keys.integer("num_processes", 1)


def _device(keys: ConfigKeys, kind: str, draft: Draft) -> None:
    wants_cpu = keys.boolean("use_cpu")
    if kind == "MPS":
        keys.answer("distributed_type", "translated", draft.take("parallel.device", "mps"))
    elif wants_cpu or kind == "MULTI_CPU":
        taken = draft.take("parallel.device", "cpu")
        keys.answer("use_cpu", "translated", taken)
        if kind == "MULTI_CPU":
            keys.answer("distributed_type", "translated", f"{taken}, and one process per device (DDP)")
    if kind in _OTHER_DEVICES:
        keys.answer(
            "distributed_type",
            "not supported",
            f"{_OTHER_DEVICES[kind]} cannot be used; devices are NVIDIA, AMD and Apple GPUs and CPUs. "
            "Nearest: the same number of NVIDIA or AMD GPUs, as in the sections above",
        )
    keys.answer("use_cpu", "not needed", "a GPU is used if there is one (parallel.device is auto)")


def _start(keys: ConfigKeys, devices: int, machines: int) -> str:
    ids = _gpu_ids(keys)
    prefix = "" if ids is None else f"CUDA_VISIBLE_DEVICES={shlex.quote(ids)} "
    if machines == 1:
        return f"{prefix}foretune train experiment.yaml"
    host = shlex.quote(str(keys.get("main_process_ip") or "HOST"))
    port = keys.integer("main_process_port", _PORT, at_least=0) or _PORT
    return (
        f"{prefix}torchrun --nnodes {machines} --nproc-per-node {devices // machines} --rdzv-backend c10d "
        f"--rdzv-endpoint {host}:{port} -m foretune train experiment.yaml"
    )


def _gpu_ids(keys: ConfigKeys) -> str | None:
    """None: all that are there."""
    value: Any = keys.get("gpu_ids")
    if value is None or str(value).strip().lower() in ("all", ""):
        keys.answer("gpu_ids", "not needed", "the first parallel.devices of the GPUs that torch sees are used")
        return None
    ids = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    ids = ids.replace(" ", "")
    keys.answer("gpu_ids", "translated", "CUDA_VISIBLE_DEVICES in the command above")
    return ids


def _answer_machines(keys: ConfigKeys, cluster: Cluster) -> None:
    if cluster.machines == 1:
        keys.answer("num_machines", "not needed", "parallel.devices counts the devices of all machines")
        for key in ("main_process_ip", "main_process_port", "rdzv_backend", "same_network"):
            keys.answer(key, "not needed", "on one machine, processes meet in a file and use the loopback interface")
        return
    keys.answer("num_machines", "translated", "torchrun on each machine, as in the command above")
    for key in ("main_process_ip", "main_process_port"):
        keys.answer(key, "translated", "the endpoint in the command above")
    for key in ("rdzv_backend", "same_network"):
        keys.answer(key, "not needed", "the command above uses torchrun's c10d, which works in any network")
