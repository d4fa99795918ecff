"""The plan of a run on the machine it is about to run on."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from foretune import catalog
from foretune.catalog.devices import Device
from foretune.config.reading import Asked
from foretune.core.errors import UserError
from foretune.core.units import GIB, KIB, MIB
from foretune.core.values.plan import Plan
from foretune.plan.asking import LiveSource, Wanted, plan_question
from foretune.plan.overheads import overhead_for
from foretune.run.devices import choose_device, peak_host_bytes
from foretune.trace.live import family_of
from foretune.trace.program import IrregularStep

HERE = "here"


def plan_here(asked: Asked, live: LiveSource, told: Callable[[str], None]) -> Plan | None:
    """The forecast for this machine; None, and the reason told, where there can be none."""
    device = device_here(asked.experiment.parallel.device)
    if device is None:
        told("No forecast: the catalogue has no device like this one.")
        return None
    try:
        wanted = Wanted(
            target=asked.experiment.model, host_numerics=True, host_context_bytes=_host_context_bytes(asked)
        )
        (plan,) = plan_question(asked, wanted, [device], live)
    except (IrregularStep, UserError) as error:
        # Nothing about a forecast should keep a run from starting that would start without it.
        told(f"No forecast: {error}")
        return None
    return plan


def device_here(asked: str) -> Device | None:
    """The device that would be taken, as the catalogue's most like it, with the memory it really has."""
    found = choose_device(asked)
    like = _most_like(found)
    if like is None:
        return None
    if found.type == "cuda":
        # torch does not count what the driver keeps; the catalogue's figure does.
        total_bytes = torch.cuda.get_device_properties(found).total_memory + overhead_for(like).driver.likely
        return like.model_copy(update={"name": HERE, "reported_memory_mib": total_bytes // MIB})
    usable = _left_on_host_bytes() + overhead_for(like).driver.likely
    return like.model_copy(update={"name": HERE, "memory_gb": usable / GIB, "num_logical_devices": 1})


def _left_on_host_bytes() -> int:
    """What the system can give to this process, what it has already included."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * KIB + peak_host_bytes()
    if os.name == "nt":
        import psutil

        return int(psutil.virtual_memory().available) + peak_host_bytes()
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _most_like(found: torch.device) -> Device | None:
    """By the driver's name where there is one, else any of the kind."""
    rows = catalog.devices().values()
    if found.type != "cuda":
        return next((row for row in rows if row.kind == found.type), None)
    kind = "rocm" if torch.version.hip else "cuda"
    words = set(torch.cuda.get_device_name(found).lower().replace("-", " ").split())
    ranked = sorted(
        (row for row in rows if row.kind == kind),
        key=lambda row: -len(words & set(row.title.lower().replace("-", " ").split())),
    )
    return ranked[0] if ranked else None


def _host_context_bytes(asked: Asked) -> int:
    """What this process holds once everything is imported that the run will need."""
    family = family_of(asked.model)
    family.denoiser_class()
    family.pipeline_class()
    return peak_host_bytes()
