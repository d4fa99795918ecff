"""A bench as a row that its owner may give to others."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from foretune import __version__, catalog
from foretune.backtests.shared.forecasting import StepsQuestion, forecast_steps
from foretune.backtests.shared.row_format import (
    UNLISTED,
    SharedEnvironment,
    SharedMeasured,
    SharedPlan,
    SharedRow,
    id_of,
    is_listed,
    public_experiment,
)
from foretune.choices.experiment import Experiment
from foretune.config.reading import Asked
from foretune.core.errors import UserError
from foretune.hub.personal import Personal
from foretune.measure.bench import Bench
from foretune.planner.asking import LiveSource, find_subject
from foretune.planner.timing.measured_here import speeds_of_this_machine
from foretune.planner.timing.terms import Terms
from foretune.record.accelerators import nvidia_driver
from foretune.record.environment import cpu_name
from foretune.record.machine import host_memory_bytes
from foretune.record.redaction import redacted_text
from foretune.record.run_directory import RunDirectory
from foretune.trace.program import IrregularStep
from foretune.training.forecast import device_here, host_context_bytes

_PACKAGES = ("accelerate", "bitsandbytes", "diffusers", "peft", "safetensors", "torchao", "transformers", "triton")
_MOST_NOTE = 300


def row_of(bench: Bench, live: LiveSource) -> SharedRow:
    """The row of a bench that has ended. Raises if it would name a person, a folder or this machine."""
    asked = bench.asked
    assert asked is not None, "a bench that was measured here knows its experiment"
    if bench.num_devices > 1:
        raise UserError("A measurement of several devices cannot be shared yet. Run it with parallel.devices=1")
    _, _, effective = RunDirectory(Path(bench.series.repeats[0].run)).read_experiment()
    experiment = _steps_only(asked.experiment, is_synthetic=bench.choices.is_synthetic)
    sections = public_experiment(experiment)
    device = torch.device(str(effective["device"]))
    measured = _measured(bench, asked, effective, device)
    environment = environment_of(device)
    row = SharedRow(
        row_id=id_of(sections, measured, environment),
        model=_model(asked, live),
        experiment=experiment,
        measured=measured,
        plan=_plan(asked, experiment, measured, live),
        environment=environment,
        notes=_note(bench),
    )
    _refuse_personal(row)
    return row


def _steps_only(experiment: Experiment, *, is_synthetic: bool) -> Experiment:
    """Synthetic batches are as cached ones, whatever the experiment says of its own."""
    if not is_synthetic:
        return experiment
    levers = experiment.levers.model_copy(update={"cache_latents": True, "cache_text": True})
    return experiment.model_copy(update={"levers": levers})


def _model(asked: Asked, live: LiveSource) -> str:
    """What others know the model by. The name of a folder is its owner's."""
    if is_listed(asked.model.asked):
        return asked.model.asked
    known = find_subject(asked.model, live).row
    return known.name if known.name in catalog.denoisers() else f"{UNLISTED}: {known.class_name}"


def _measured(bench: Bench, asked: Asked, effective: dict[str, Any], device: torch.device) -> SharedMeasured:
    series, is_host = bench.series, device.type == "cpu"
    step = series.mean_step_s
    if step.value is None:
        raise UserError("The step time is not known, so there is nothing to share. Run more steps: --steps 50")
    return SharedMeasured(
        num_runs=bench.choices.num_repeats,
        num_steps=bench.choices.num_steps,
        samples_per_step=series.samples_per_step,
        step_s=step.value,
        step_low_s=None if step.low is None else max(0.0, step.low),
        step_high_s=step.high,
        allocated_bytes=series.peak_device_bytes,
        reserved_bytes=series.peak_reserved_bytes,
        process_bytes=series.peak_host_bytes,
        context_bytes=host_context_bytes(asked) if is_host else None,
        num_params=effective["num_params"],
        num_trained_params=effective["num_trained_params"],
        height_px=effective["size_px"][1],
        width_px=effective["size_px"][0],
        num_frames=effective.get("num_frames") or 1,
        hardware_flops=series.hardware_flops,
        peak_flops_per_s=series.peak_flops_per_s,
        is_peak_measured=(series.peak_source or "").startswith("measured"),
        is_synthetic=bench.choices.is_synthetic,
        has_random_weights=bench.choices.has_random_weights,
    )


def _plan(asked: Asked, experiment: Experiment, measured: SharedMeasured, live: LiveSource) -> SharedPlan | None:
    """As a plan for this machine is made; None where there can be none."""
    device = device_here(experiment.parallel.device)
    if device is None:
        return None
    question = StepsQuestion(
        experiment=experiment,
        model=asked.model,
        height_px=measured.height_px,
        width_px=measured.width_px,
        num_frames=measured.num_frames,
        device=device,
        context_bytes=measured.context_bytes,
    )
    threads = experiment.parallel.threads or torch.get_num_threads()
    try:
        return forecast_steps(question, live, Terms(speeds=speeds_of_this_machine(threads)), as_measured_here=True)
    except (IrregularStep, UserError):
        return None  # the bench has said why


def environment_of(device: torch.device) -> SharedEnvironment:
    kind, name, total_bytes = _device(device)
    driver = nvidia_driver() if kind == "cuda" else None
    return SharedEnvironment(
        device_kind=kind,
        device=_word(name),
        device_bytes=total_bytes,
        num_threads=torch.get_num_threads(),
        foretune=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        torch=torch.__version__,
        accelerator_version=torch.version.cuda or torch.version.hip,
        driver=driver,
        packages={name: found for name in _PACKAGES if (found := _version(name)) is not None},
    )


def _device(device: torch.device) -> tuple[Any, str, int]:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return "rocm" if torch.version.hip else "cuda", properties.name, properties.total_memory
    kind = "mps" if device.type == "mps" else "cpu"
    return kind, cpu_name() or "CPU", host_memory_bytes()[0]


def _word(text: str) -> str:
    """Letters, digits and a few marks, which every reader of a row accepts."""
    return "".join(c if c.isascii() and (c.isalnum() or c in " .,:;()+/@<>=~_-") else " " for c in text)[:120].strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _note(bench: Bench) -> str:
    """What a reader should know of how it was measured."""
    parts = [
        "synthetic data" if bench.choices.is_synthetic else "own data",
        *(["random weights"] if bench.choices.has_random_weights else []),
        *(["the machine was busy"] if any(warning.startswith("Other processes") for warning in bench.warnings) else []),
    ]
    return "; ".join(parts)[:_MOST_NOTE]


def _refuse_personal(row: SharedRow) -> None:
    text = "\n".join(row.cells().values())
    found = Personal([Path.cwd()]).found_in(text)
    if found is not None or redacted_text(text) != text:
        raise UserError(
            f"The row would publish {found or 'a secret'}, so it is not shared. Look for it in the experiment: "
            "method.targets and quantize.keep are part of the row."
        )
