"""A simulated CUDA device: the CPU's kernels, a GPU's rules.

SIMACCEL=cuda puts it in the place of CUDA when torch is imported, through torch's entry point for backends.
"""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

device: Any = None
"""The compiled module; None where no device is simulated in this process."""


@dataclass(frozen=True)
class Wait:
    """The host waited for a device."""

    reason: str
    stack: str
    """Frames of Python, the innermost first."""


def waits(clear: bool = False) -> list[Wait]:
    """Returns the waits of the host, the oldest first: at most the last 20,000."""
    return [Wait(reason, stack) for reason, stack in device.syncs(clear)]


def findings(clear: bool = False) -> list[str]:
    """Returns the breaches of a GPU's rules, each with the stacks of both sides."""
    found: list[str] = device.findings(clear)
    return found


def threads_are_ordered() -> None:
    """Declares that this thread comes after what other threads did: they handed on data through Python objects alone.

    Locks, queues, events, futures, and the start and end of threads are seen without it.
    """
    device.learn_from_all_threads()


def autoload() -> None:
    """Called by torch when it is imported."""
    if os.environ.get("SIMACCEL") == "mps":
        from simaccel import mps

        mps.install()
    elif os.environ.get("SIMACCEL"):
        install()


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("simaccel_device", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install() -> Any:
    """Puts the simulated device behind torch.cuda; returns the compiled module."""
    global device  # noqa: PLW0603 - torch has one CUDA
    if device is not None:
        return device
    import torch

    from simaccel import as_cuda, faults, report, threads
    from simaccel.build import build
    from simaccel.operators import read_operators
    from simaccel.properties import Machine

    machine = Machine(os.environ.get("SIMACCEL") or "cuda")
    device = _load(build())
    operators = read_operators()
    device.register_operators(operators["with_cuda"], operators["without_cuda"])
    as_cuda.install(torch, device, machine)
    threads.install(device)
    faults.install(device)
    report.install(device)
    return device
