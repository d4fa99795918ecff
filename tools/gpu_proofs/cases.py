"""Which trainings of the standard models a device is measured with: those that our own plan says fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from foretune import catalog
from foretune.catalog.devices import Device
from foretune.config.reading import understand
from foretune.core.errors import UserError
from foretune.core.units import GIB
from foretune.core.values import Plan
from foretune.planner.asking import PlanRequest, plan_question

_IMAGE_STEPS, _VIDEO_STEPS = 20, 6
_REPEATS = 2
_START_S = 60.0
"""Of a repeat: imports, and the first steps."""
_FILLED_BYTES_PER_S = 0.5e9
"""How fast random weights are made and quantised, at least."""
_MOST_CASES_PER_MODEL = 2


@dataclass(frozen=True)
class StandardModel:
    """A model that the proofs are about, and the sizes to try, the first that fits."""

    name: str
    sizes: tuple[dict[str, Any], ...] = ({},)
    num_steps: int = _IMAGE_STEPS
    instead_of: str | None = None
    """Taken where nothing of this model fits."""


_IMAGE_SIZES: tuple[dict[str, Any], ...] = ({}, {"resolution": 512})
STANDARD_MODELS = (
    StandardModel("sdxl-unet", _IMAGE_SIZES),
    StandardModel("sd3.5-medium", _IMAGE_SIZES),
    StandardModel("flux.1-dev", _IMAGE_SIZES),
    StandardModel(
        "wan2.1-t2v-1.3b",
        ({}, {"resolution": "416x240", "num_frames": 33}, {"resolution": "416x240", "num_frames": 9}),
        _VIDEO_STEPS,
    ),
    StandardModel(
        "hunyuanvideo", ({"resolution": "512x320", "num_frames": 33}, {"resolution": "512x320", "num_frames": 9}),
        _VIDEO_STEPS,
    ),
    StandardModel("mochi-1", ({"resolution": "480x848", "num_frames": 19},), _VIDEO_STEPS, instead_of="hunyuanvideo"),
)  # fmt: skip
_FORMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bf16", {}),
    ("int8", {"quantize": {"denoiser": "int8"}}),
    ("nf4", {"quantize": {"denoiser": "nf4"}}),
    ("int8, block swap", {"quantize": {"denoiser": "int8"}, "levers": {"block_swap": 16}}),
)
"""From the plainest on: a base in bf16, in 8 bits, in 4 bits, and with blocks that wait on the host."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training with random weights, and what is forecast for it."""

    name: str
    experiment: dict[str, Any]
    num_steps: int
    num_repeats: int
    plan: Plan
    num_params: int

    @property
    def expected_s(self) -> float | None:
        """Of all repeats; None where the plan has no step time."""
        if self.plan.time is None:
            return None
        filling_s = 2 * self.num_params / _FILLED_BYTES_PER_S
        return self.num_repeats * (_START_S + filling_s + self.num_steps * self.plan.time.step_s)


@dataclass(frozen=True)
class LeftOutModel:
    """A model of which nothing fits, and why."""

    name: str
    reason: str


def cases_for(device: Device, models: Sequence[StandardModel] = STANDARD_MODELS) -> Iterator[Case | LeftOutModel]:
    """What to measure on a device, the first of each model's forms that fit."""
    without: set[str] = set()
    for model in models:
        if model.instead_of is not None and model.instead_of not in without:
            continue
        found, why = _cases_of(model, device)
        if not found:
            without.add(model.name)
            yield LeftOutModel(model.name, why)
        yield from found


def _cases_of(model: StandardModel, device: Device) -> tuple[list[Case], str]:
    """For each form the first size that fits."""
    found: list[Case] = []
    why = ""
    for form, settings in _FORMS:
        for size in model.sizes:
            experiment = _experiment(model.name, settings, size)
            try:
                plan = plan_of(experiment, device)
            except UserError as error:
                why = str(error)
                continue
            if plan.verdict == "fits":
                text = ", ".join([form, *(str(value) for value in size.values())])
                found.append(case_of(f"{model.name}: LoRA, {text}", experiment, plan, model.num_steps))
                break
            needed, usable = plan.process_bytes / GIB, plan.usable_bytes / GIB
            why = f"the plan says {plan.verdict}: {needed:.1f} GiB estimated, {usable:.1f} GiB usable"
        if len(found) == _MOST_CASES_PER_MODEL:
            break
    return found, why


def case_of(name: str, experiment: dict[str, Any], plan: Plan, num_steps: int, num_repeats: int = _REPEATS) -> Case:
    rows = catalog.denoisers()
    num_params = rows[plan.model].num_params if plan.model in rows else 0
    return Case(
        name=name,
        experiment=experiment,
        num_steps=num_steps,
        num_repeats=num_repeats,
        plan=plan,
        num_params=num_params,
    )


def plan_of(experiment: dict[str, Any], device: Device) -> Plan:
    """The plan on a device with what ships; raises `UserError` where there can be none."""
    asked = understand(experiment, source=None, only_planned=True)
    (plan,) = plan_question(asked, PlanRequest(target=experiment, advice="none"), [device], None)
    return plan


def _experiment(model: str, settings: dict[str, Any], size: dict[str, Any]) -> dict[str, Any]:
    quantize, levers = settings.get("quantize", {}), settings.get("levers", {})
    return {
        "name": "gpu-proof",
        "model": model,
        "method": {"kind": "lora", "rank": 16},
        "data": {"kind": "shapes", **size},
        "train": {"steps": 1, "batch_size": 1, "precision": "bf16"},
        "quantize": quantize,
        "levers": {"gradient_checkpointing": 1.0, **levers},
        # The plan is for the steps that are measured: nothing is validated.
        "validate": {"num_held_out": 0},
        "accept": ["distilled-base"],
    }


__all__ = ["STANDARD_MODELS", "Case", "LeftOutModel", "StandardModel", "case_of", "cases_for", "plan_of"]
