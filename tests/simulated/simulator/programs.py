"""Runs small programs and returns what the simulated device reports about them."""

from collections.abc import Callable

import torch

import simaccel


def findings_of(program: Callable[[], object]) -> list[str]:
    """Returns the findings of a program. Its other errors are raised."""
    torch.cuda.synchronize()
    simaccel.findings(clear=True)
    error: RuntimeError | None = None
    try:
        program()
        torch.cuda.synchronize()
    except RuntimeError as raised:
        error = raised
    # Copies may still be in flight; their memory is freed when the program's frame is gone.
    torch.cuda.synchronize()
    findings = simaccel.findings(clear=True)
    if error is not None and not findings:
        raise error
    return findings
