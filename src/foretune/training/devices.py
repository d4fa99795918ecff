"""Where to run, and how much memory was used there."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from foretune import catalog
from foretune.accelerator.memory import reserved_bytes
from foretune.choices.capabilities import objections
from foretune.choices.experiment import Experiment
from foretune.choices.objections import DeviceType
from foretune.choices.objections.hardware import emulated_bf16
from foretune.choices.objections.quantization import FLOAT8_PRODUCTS
from foretune.choices.running import Parallel
from foretune.core.errors import Refused
from foretune.core.given_devices import num_given_devices
from foretune.core.units import KIB
from foretune.models.family import Family
from foretune.record.accelerators import nvidia_pages_to_host
from foretune.step.methods.base import has_dropout

UNTESTED_ON_MPS = (
    "MPS is untested: no Mac has run Foretune yet. Compare the losses of a few steps with those of "
    "parallel.device=cpu before a long run."
)
_AMPERE = (8, 0)
"""The first compute capability with bf16 and tf32."""


def available_devices() -> list[torch.device]:
    """Every device that can train, accelerators first."""
    devices = []
    if torch.cuda.is_available():
        devices += [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append(torch.device("mps"))
    return [*devices, torch.device("cpu")]


def accelerators_text() -> str:
    """Which accelerators torch sees, or that there is none and what follows from it."""
    found = [device for device in available_devices() if device.type != "cpu"]
    if found:
        text = "GPU found: " + ", ".join(f"{_device_name(device)} ({device})" for device in found)
        return f"{text}\n{UNTESTED_ON_MPS}" if any(device.type == "mps" for device in found) else text
    if torch.version.cuda is not None:
        why = f"this torch is built for CUDA {torch.version.cuda} but sees no NVIDIA GPU; check: nvidia-smi"
    elif torch.version.hip is not None:
        why = f"this torch is built for ROCm {torch.version.hip} but sees no AMD GPU; check: rocm-smi"
    else:
        why = f"this torch ({torch.__version__}) has no CUDA or ROCm support, and there is no Apple GPU (MPS)"
    return (
        f"No GPU found: {why}. Training, bench and evaluate run on the CPU. "
        "Planning needs no GPU: foretune plan MODEL --on rtx-4090\n"
        'With a GPU this line reads "GPU found: NVIDIA GeForce RTX 4090 (cuda:0)"; with ROCm, "AMD Instinct MI300X '
        '(cuda:0)"; on a Mac, "Apple GPU (mps)".'
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "Apple GPU"


def choose_device(asked: str, local_rank: int = 0) -> torch.device:
    """The device that was asked for, or the best there is. Of several GPUs, each process of a node takes its own."""
    devices = available_devices()
    wanted = devices[0].type if asked == "auto" else asked
    if asked == "auto" and wanted == "cpu" and num_given_devices():
        raise Refused(
            f"parallel.device: a GPU was reserved for this task, and torch sees none ({_visibility()}). Run on this "
            "machine: foretune doctor"
        )
    of_type = [device for device in devices if device.type == wanted]
    # A launcher may show each process a GPU of its own: SLURM with --gpus-per-task=1, pods of Kubernetes.
    index = local_rank if wanted == "cuda" and len(of_type) > 1 else 0
    if of_type and index >= len(of_type):
        raise Refused(
            f"parallel.devices: process {local_rank + 1} of this node has no GPU: torch sees {len(of_type)}. "
            f"Nearest: parallel.devices={len(of_type)}"
        )
    if of_type:
        return of_type[index]
    there = ", ".join(sorted({device.type for device in devices}))
    raise Refused(f"parallel.device: there is no {asked} device here. Present: {there}. Run: foretune doctor")


def refuse_absent_devices(parallel: Parallel) -> None:
    """Raises before processes are started on this machine that would share an accelerator. A CPU is shared."""
    wanted = choose_device(parallel.device).type
    num_seen = sum(device.type == wanted for device in available_devices())
    if wanted != "cpu" and parallel.devices > num_seen:
        raise Refused(
            f"devices={parallel.devices}: each needs a device of its own, and torch sees {num_seen} of type {wanted}. "
            f"Nearest: devices={num_seen}"
        )


def _visibility() -> str:
    """What hides GPUs from this process, or why torch has none."""
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    chosen = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return ", ".join(chosen) or f"torch {torch.__version__} may be a build without CUDA and ROCm"


def use_threads(num: int | None) -> None:
    """Lets a CPU compute with so many threads from here on; None stands for what torch or OMP_NUM_THREADS decided.

    The number is set even if it does not change: until then MKL decides at each call how many threads it uses, and a
    resumed run, which sets the number of its beginning, would add in another order.
    """
    torch.set_num_threads(torch.get_num_threads() if num is None else num)


def device_type(device: torch.device) -> DeviceType:
    """What libraries tell apart: AMD's GPUs are cuda to torch, but not to every one of them."""
    if device.type == "cuda":
        return "rocm" if torch.version.hip else "cuda"
    assert device.type in ("cpu", "mps"), f"{device} is none of the devices that are looked for"
    return "cpu" if device.type == "cpu" else "mps"


def refuse_what_the_device_cannot(experiment: Experiment, family: str, device: torch.device) -> None:
    """The capability matrix once more, now that the device is known."""
    found = objections(experiment, family, distilled=None, device_type=device_type(device))
    problems = [objection.text for objection in found if objection.severity == "refused"]
    if experiment.train.precision == "tf32" and device.type == "cuda" and not _has_tf32(device):
        problems.append(
            f"train.precision: {torch.cuda.get_device_name(device)} is older than tf32, which came with Ampere. "
            "Nearest: train.precision=fp32"
        )
    products = experiment.quantize.denoiser
    if products in FLOAT8_PRODUCTS and device_type(device) == "cuda" and not _has_float8_products(device):
        problems.append(
            f"quantize.denoiser: {products} multiplies in float8, which came with Ada and Hopper; "
            f"{torch.cuda.get_device_name(device)} is older. "
            "Nearest: quantize.denoiser=float8, which only stores in float8"
        )
    if problems:
        raise Refused(f"{device} cannot run this experiment: " + "; ".join(problems))


def refuse_own_dropout(experiment: Experiment, family: Family, device: torch.device) -> None:
    """That of an adapter is refused as a choice. A model's own is known when its folder is."""
    if device.type != "mps" or not experiment.levers.gradient_checkpointing:
        return
    if has_dropout(family.denoiser_on_meta(torch.float32)):
        raise Refused(
            f"levers.gradient_checkpointing: this {family.name} model has dropout, and on mps torch recomputes "
            "checkpointed blocks with other random numbers. Nearest: levers.gradient_checkpointing=0"
        )


def device_warnings(experiment: Experiment, device: torch.device) -> list[str]:
    """What the device can compute, but slowly, or what nobody has tried on it."""
    if device.type == "mps":
        return [UNTESTED_ON_MPS]
    is_nvidia = device_type(device) == "cuda"
    if experiment.train.precision != "bf16" or not is_nvidia or torch.cuda.get_device_capability(device) >= _AMPERE:
        return []
    properties = torch.cuda.get_device_properties(device)
    row = catalog.device_by_driver_name(properties.name, properties.total_memory, "cuda")
    return [emulated_bf16(experiment.train, properties.name, row)]


def _has_tf32(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= _AMPERE


def _has_float8_products(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 9)


def reserved_share_of(device: torch.device) -> Callable[[], float | None]:
    """Returns a function that returns what the allocator holds over the card's memory, without waiting for the device.

    It returns None where allocations fail on a full card; where the driver moves memory to the host instead, a share
    near 1 or above explains slow steps.
    """
    if device_type(device) != "cuda" or not nvidia_pages_to_host():
        return lambda: None
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    return lambda: (reserved_bytes(device) or 0) / total_bytes


def fail_when_full(device: torch.device) -> None:
    """Lets allocations fail beyond the card's memory where its driver would move memory to the host instead.

    For what looks for the largest that fits: a step that takes many times as long is no answer.
    """
    if device_type(device) == "cuda" and nvidia_pages_to_host():
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def peak_host_bytes() -> int:
    """The process's high-water mark.

    On Linux not that of getrusage, which a program inherits from the one that started it: a small one that was started
    by a large one would seem to have been as large.
    """
    if sys.platform == "linux":
        with Path("/proc/self/status").open(encoding="ascii", errors="replace") as status:
            high = next((line for line in status if line.startswith("VmHWM:")), None)
        if high is not None:
            return int(high.split()[1]) * KIB
    if os.name == "nt":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * KIB  # kilobytes everywhere but there
