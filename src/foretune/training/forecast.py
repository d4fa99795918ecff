"""The plan of a run on the machine it is about to run on."""

from collections.abc import Callable
from dataclasses import replace

import torch

from foretune import catalog
from foretune.catalog.devices import HERE, Device, Kind, generic_card
from foretune.choices.model import resolve_model
from foretune.config.reading import Asked
from foretune.core.errors import UserError
from foretune.core.importing import collector_paused
from foretune.core.units import GIB, MIB
from foretune.core.values.plan import Plan
from foretune.models.locating import locate
from foretune.planner.asking import LiveSource, PlanRequest, plan_question
from foretune.planner.device_requests import cpu_here
from foretune.planner.timing.measured_here import speeds_of_this_machine
from foretune.planner.timing.terms import Terms
from foretune.record.accelerators import nvidia_pages_to_host
from foretune.record.machine import host_memory_bytes
from foretune.trace.live import family_of
from foretune.trace.program import IrregularStep
from foretune.training.devices import choose_device, peak_host_bytes


def plan_here(asked: Asked, live: LiveSource, tell: Callable[[str], None]) -> Plan | None:
    """The forecast for this machine; None where there can be none; the reason is reported."""
    device = device_here(asked.experiment.parallel.device)
    if device is None:
        tell("No plan, so no estimate of memory and speed: the catalogue has no device like this one.")
        return None
    if asked.model.family is None:
        # Only the files of the repository tell; the run downloads them in any case.
        folder, _ = locate(asked.model)
        asked = replace(asked, model=replace(resolve_model(str(folder)), asked=asked.model.asked))
    # The threads that the run will compute with; torch is imported, so it knows its own choice.
    threads = asked.experiment.parallel.threads or torch.get_num_threads()
    request = PlanRequest(
        target=asked.experiment.model,
        host_numerics=True,
        host_context_bytes=host_context_bytes(asked),
        terms=Terms(speeds=speeds_of_this_machine(threads)),
    )
    return _plan(asked, request, device, live, tell)


def plan_on_device(asked: Asked, live: LiveSource, device: Device, *, context_bytes: int) -> Plan | None:
    """The forecast for a device, without advice; None where there can be none.

    `context_bytes` is what a process takes that has imported the libraries, if it computes on the host.
    """
    request = PlanRequest(
        target=asked.experiment.model, host_numerics=True, host_context_bytes=context_bytes, advice="none"
    )
    return _plan(asked, request, device, live, lambda _: None)


def _plan(
    asked: Asked, request: PlanRequest, device: Device, live: LiveSource, tell: Callable[[str], None]
) -> Plan | None:
    try:
        (plan,) = plan_question(asked, request, [device], live)
    except (IrregularStep, UserError) as error:
        tell(f"No plan, so no estimate of memory and speed: {error}")
        return None
    except Exception as error:  # noqa: BLE001 - nothing about a forecast keeps a run from starting
        tell(f"No plan, so no estimate of memory and speed ({type(error).__name__}: {error}). Please report this.")
        return None
    return plan


def device_here(asked: str) -> Device | None:
    """The device that would be taken, as the catalogue knows it, with the memory it really has."""
    found = choose_device(asked)
    if found.type == "cuda":
        return _card_here(found)
    # What this process holds already is its own.
    total_bytes, left_bytes = host_memory_bytes()
    left_bytes = min(total_bytes, left_bytes + peak_host_bytes())
    if found.type == "cpu":
        return cpu_here(left_bytes)
    like = next((row for row in catalog.devices().values() if row.kind == found.type), None)
    return None if like is None else like.model_copy(update={"name": HERE, "memory_gb": left_bytes / GIB})


def _card_here(found: torch.device) -> Device:
    kind: Kind = "rocm" if torch.version.hip else "cuda"
    total_bytes = torch.cuda.get_device_properties(found).total_memory
    like = catalog.device_by_driver_name(torch.cuda.get_device_name(found), total_bytes, kind)
    if like is None:
        total_mib = total_bytes // MIB
        like = generic_card(HERE, memory_gb=total_mib / 1024, reported_memory_mib=total_mib, kind=kind)
    # Of what torch reports the driver keeps nothing for itself: see `overhead_for`.
    return like.model_copy(
        update={
            "name": HERE,
            "num_logical_devices": 1,
            "reported_memory_mib": total_bytes // MIB,
            "pages_to_host": kind == "cuda" and nvidia_pages_to_host(),
        }
    )


def host_context_bytes(asked: Asked) -> int:
    """What this process holds once everything is imported that the run will need."""
    family = family_of(asked.model)
    with collector_paused():
        family.denoiser_class()
        family.pipeline_class()
    return peak_host_bytes()
