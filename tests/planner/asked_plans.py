"""Plans as a user asks for them, from the traces of the package alone."""

from typing import Any

from foretune.catalog.devices import Device
from foretune.core.values.plan import Plan, Remedy
from foretune.planner.asking import PlanRequest, devices_named, plan_everything
from foretune.planner.knobs import EXPANDABLE, FRAMES

VERDICTS = ("fits", "tight", "does not fit")
GIB = 2**30


def plans(target: str, *overrides: str, on: str | list[Device] = "l4", **wanted: Any) -> tuple[Plan, ...]:
    """One question, without torch."""
    devices = devices_named(on) if isinstance(on, str) else on
    asked = PlanRequest(target=target, overrides=overrides, **wanted)
    ((_, found),) = plan_everything(asked, devices, None)
    return found


def plan(target: str, *overrides: str, on: str | list[Device] = "l4", **wanted: Any) -> Plan:
    (found,) = plans(target, *overrides, on=on, **wanted)
    return found


def with_remedy(target: str, *overrides: str, on: str, remedy: Remedy) -> Plan:
    """The same question with a remedy's settings typed behind it."""
    settings = dict(remedy.settings)
    expandable = settings.pop(EXPANDABLE, None) is not None
    frames = settings.pop(FRAMES, None)
    typed = (f"{key}={value}" for key, value in settings.items())
    return plan(
        target,
        *overrides,
        *typed,
        on=on,
        expandable_segments=expandable,
        num_frames=None if frames is None else int(frames),
        advice="none",
    )
