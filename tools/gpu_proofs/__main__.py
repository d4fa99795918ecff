"""Proves on a GPU what cannot run on a CPU: `make gpu_proofs`, or `python -m tools.gpu_proofs --dry-run`."""

import argparse
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import torch

from foretune import catalog
from foretune.catalog.devices import Device
from foretune.core.errors import UserError
from foretune.core.units import duration_text
from foretune.measure.sharing import environment_of
from foretune.record.accelerators import first_line
from foretune.training.forecast import device_here
from tools.gpu_proofs.cases import LeftOutModel, case_of, cases_for, plan_of
from tools.gpu_proofs.proving import OTHERS, WAITS, WORKFLOW, Work, expected, prove
from tools.gpu_proofs.results import GpuProofs, read_results

_OUTPUT = Path("build") / "gpu_proofs.json"
_REHEARSED_MODEL = "ddpm-cifar10"
"""A CPU trains it in seconds, also with random weights."""
_REHEARSAL = {
    "name": "gpu-proof",
    "model": _REHEARSED_MODEL,
    "method": {"kind": "full"},
    "data": {"kind": "shapes"},
    "train": {"steps": 1, "batch_size": 1, "precision": "fp32"},
    "validate": {"num_held_out": 0},
}
_REHEARSED = (
    replace(WORKFLOW, arguments=(*WORKFLOW.arguments, "-k", "images and DDPM")),
    replace(WAITS, arguments=(*WAITS.arguments, "-k", catalog.denoisers()[_REHEARSED_MODEL].family_facts.name)),
    replace(OTHERS, arguments=("-m", "gpu", "tests/accelerator/test_page_locked_on_gpu.py")),
)
"""One test of each suite."""


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if nothing failed, 1 if something did, and 2 if it could not begin."""
    options = _options(arguments)
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    if device_type == "cpu" and not options.rehearse:
        _say(
            "gpu_proofs: torch sees no CUDA or ROCm GPU here, so nothing was proved. Run `foretune doctor` on the "
            "machine that has one, and install a torch for it: make setup TORCH=...",
            sys.stderr,
        )
        return 2
    device = device_here(device_type)
    assert device is not None, "a CUDA card or a CPU is always described"
    work = _work(options, device, device_type)
    _print_expected(work, device)
    if options.dry_run:
        return 0
    try:
        results = prove(work, _begun(options.output, device_type), _say)
    except UserError as error:
        _say(f"gpu_proofs: {error}", sys.stderr)
        return 2
    num_failed = sum(proof.outcome == "failed" for proof in results.proofs)
    _say(f"{len(results.proofs)} proofs, {num_failed} failed: {options.output}. How to send it: docs/gpu-proofs.md")
    return 0 if results.is_complete else 1


def _say(text: str, stream: TextIO | None = None) -> None:
    out = stream or sys.stdout
    out.write(f"{text}\n")
    out.flush()


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_proofs", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="only print what would run, and about how long")
    parser.add_argument("--output", type=Path, default=_OUTPUT, help=f"the results; continued if there [{_OUTPUT}]")
    parser.add_argument("--steps", type=int, help="steps of each repeat, instead of each model's own")
    parser.add_argument(
        "--rehearse", action="store_true", help="a few tests and a small model, also without a GPU: proves the program"
    )
    return parser.parse_args(arguments)


def _work(options: argparse.Namespace, device: Device, device_type: str) -> Work:
    if options.rehearse:
        case = case_of(f"{_REHEARSED_MODEL}: full", _REHEARSAL, plan_of(_REHEARSAL, device), options.steps or 3, 1)
        return Work(
            device=device_type,
            cases=(case, LeftOutModel("flux.1-dev", "too large for a rehearsal")),
            output=options.output,
            suites=_REHEARSED,
            calibration_s=1.0,
        )
    return Work(device=device_type, cases=tuple(cases_for(device)), output=options.output)


def _print_expected(work: Work, device: Device) -> None:
    _say(f"On {device.title}, as the plan fits:")
    known_s = 0.0
    for name, took_s in expected(work):
        known_s += took_s or 0.0
        text = "time not known" if took_s is None else "skipped" if took_s == 0 else f"about {duration_text(took_s)}"
        _say(f"  {name}: {text}")
    _say(f"In all about {duration_text(known_s)}, without what is not known. Random weights: nothing is downloaded.")


def _begun(output: Path, device_type: str) -> GpuProofs:
    """Earlier results of the same device and versions, or none."""
    fresh = GpuProofs(
        environment=environment_of(torch.device(device_type)).model_dump(),
        commit=first_line("git", "rev-parse", "HEAD"),
        date=datetime.now(UTC).date().isoformat(),
    )
    if not output.is_file():
        return fresh
    earlier = read_results(output)
    if (earlier.environment, earlier.commit) != (fresh.environment, fresh.commit):
        raise UserError(f"{output} is of another device, commit or set of versions. Move it away, or give --output.")
    return earlier


if __name__ == "__main__":
    sys.exit(main())
