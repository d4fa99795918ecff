"""What came of a run: also when it failed."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from foretune.core.values.base import Part, Upgrade, Value
from foretune.core.values.plan import Plan

Status = Literal["finished", "interrupted", "out of memory", "failed"]


class Outcome(Part):
    """How a run ended; an out-of-memory or a crash is an outcome like any other."""

    status: Status
    steps_done: int
    reason: str | None = None
    """One sentence for people when the run did not finish."""


class Measured(Part):
    """Summaries of the raw numbers in events.jsonl. None is "not measured", never zero."""

    num_step_times: int = 0
    median_step_s: float | None = None
    samples_per_s: float | None = None
    peak_device_bytes: int | None = None
    peak_host_bytes: int | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    held_out_losses: tuple[tuple[int, float], ...] = ()
    """(step, loss) at fixed noise and timesteps; step 0 is the base model."""
    phases_s: dict[str, float] | None = None
    """Seconds of the run by phase, pauses included: they sum to its wall time."""
    num_warmup_steps: int | None = None
    """Steps at the start that the speed leaves out."""
    compile_s: float | None = None
    """What the first steps took beyond a steady one, where something was compiled in them."""
    peak_reserved_bytes: int | None = None
    """The most that the allocator held of the device, given out or not."""
    energy_j: float | None = None
    """What the devices took while the run lasted, where a sensor reported it."""
    mean_power_w: float | None = None
    model_flops_per_step: int | None = None
    """Products that the model needs for one optimizer step; what is computed twice counts once."""
    utilisation: float | None = None
    """Share of the device's peak that these products make up at the measured speed."""
    counted_s: float | None = None
    """What the clock of a run with a time budget counted, of all its parts; None where steps were counted."""
    prepare_s: float | None = None
    """From the start to the loop: loading, downloading, reading images, encoding; of a resumed run, the last part."""


def _with_newer_plan(body: dict[str, Any]) -> dict[str, Any]:
    """Version 2 holds a plan of version 2."""
    plan = body.get("plan")
    return {**body, "plan": None if plan is None else Plan.upgrades[1](plan)}


def _with_more_measured(body: dict[str, Any]) -> dict[str, Any]:
    """Version 2 measured no phases, energy or utilisation; what was not measured is absent."""
    return body


def _with_plan_of_version_3(body: dict[str, Any]) -> dict[str, Any]:
    """Version 4 holds a plan of version 3."""
    plan = body.get("plan")
    return {**body, "plan": None if plan is None else Plan.upgrades[2](plan)}


def _with_plan_of_version_4(body: dict[str, Any]) -> dict[str, Any]:
    """Version 5 holds a plan of version 4."""
    plan = body.get("plan")
    return {**body, "plan": None if plan is None else Plan.upgrades[3](plan)}


def _with_plan_of_version_5(body: dict[str, Any]) -> dict[str, Any]:
    """Version 6 holds a plan of version 5."""
    plan = body.get("plan")
    return {**body, "plan": None if plan is None else Plan.upgrades[4](plan)}


def _with_plan_of_version_6(body: dict[str, Any]) -> dict[str, Any]:
    """Version 7 holds a plan of version 6."""
    plan = body.get("plan")
    return {**body, "plan": None if plan is None else Plan.upgrades[5](plan)}


def _with_plan_of_version_7(body: dict[str, Any]) -> dict[str, Any]:
    """Version 8 holds a plan of version 7."""
    plan = body.get("plan")
    return {**body, "plan": None if plan is None else Plan.upgrades[6](plan)}


class RunRecord(Value):
    """Written last. A run directory without one was stopped without warning."""

    upgrades: ClassVar[Mapping[int, Upgrade]] = {
        1: _with_newer_plan,
        2: _with_more_measured,
        3: _with_plan_of_version_3,
        4: _with_plan_of_version_4,
        5: _with_plan_of_version_5,
        6: _with_plan_of_version_6,
        7: _with_plan_of_version_7,
    }

    run_id: str
    question_hash: str | None
    """None where the run ended before its data were read."""
    experiment_hash: str
    outcome: Outcome
    plan: Plan | None = None
    """None where no forecast was made before the first step."""
    environment: dict[str, Any]
    environment_hash: str
    measured: Measured
    num_trainable_params: int | None
    num_params: int | None
    wall_s: float
    """From the first step to the end; of a resumed run, the last part."""
    warnings: tuple[str, ...] = ()
