"""Resolves `--on`: a device of the catalogue by any of its names, a card with some memory, or this machine's."""

from collections.abc import Callable, Iterator
from pathlib import Path

from foretune import catalog
from foretune.catalog.devices import HERE, Device, generic_card
from foretune.core.errors import UnknownName, UserError
from foretune.core.units import GIB, MIB, bytes_of_text, bytes_text
from foretune.planner.transfers import ASSUMED_LINK
from foretune.record.accelerators import Accelerator, accelerators_here
from foretune.record.machine import host_memory_bytes

Say = Callable[[str], None]


def requested_devices(typed: str, say: Say) -> Iterator[Device]:
    """Resolves one name. `say` is called if it is not exactly a name of the catalogue."""
    if typed.lower() == HERE:
        yield from devices_here(say)
        return
    size = bytes_of_text(typed)
    if size is not None:
        yield _card_of(typed, *size)
        num_bytes, is_binary = size
        sold = f"{num_bytes / 10**9:.6g}"
        unit = "" if is_binary else f", with GB as 10^9 bytes (a card sold as {sold}GB has {sold}GiB)"
        say(f"{typed}: any CUDA card with this memory on {ASSUMED_LINK}{unit}")
        return
    try:
        found = catalog.device_names().resolve(typed)
    except UnknownName as error:
        raise UserError(
            f"{error} For a card that is not in the catalogue give its memory: foretune plan ... --on 16GiB. All "
            "devices: foretune list devices"
        ) from error
    if found.note is not None:
        say(found.note)
    yield catalog.devices()[found.name]


def devices_here(say: Say, root: Path = Path("/")) -> Iterator[Device]:
    """Yields each kind of accelerator of this machine once; without any, its CPU."""
    found = dict.fromkeys(accelerators_here(root))
    for accelerator in found:
        device = _as_device(accelerator)
        say(f"here: {accelerator.name} with {bytes_text(accelerator.total_bytes)}, planned as {device.name}")
        yield device
    if not found:
        _, left_bytes = host_memory_bytes(root)
        say(f"here: no accelerator found, so the CPU with the {bytes_text(left_bytes)} of memory that are free now")
        yield cpu_here(left_bytes)


def cpu_here(left_bytes: int) -> Device:
    """Returns this machine's CPU with the memory that is still available."""
    like = next(row for row in catalog.devices().values() if row.kind == "cpu")
    return like.model_copy(update={"name": HERE, "title": "this CPU", "memory_gb": left_bytes / GIB})


def _as_device(accelerator: Accelerator) -> Device:
    """Returns the catalogue's row with the driver's total memory; without a row, a card with that memory."""
    total_mib = accelerator.total_bytes // MIB
    if accelerator.kind == "mps":
        like = next(row for row in catalog.devices().values() if row.kind == "mps")
        return like.model_copy(
            update={"name": HERE, "title": accelerator.name, "memory_gb": accelerator.total_bytes / GIB}
        )
    row = catalog.device_by_driver_name(accelerator.name, accelerator.total_bytes, accelerator.kind)
    if row is not None:
        return row.model_copy(update={"reported_memory_mib": total_mib * row.num_logical_devices})
    slug = "-".join("".join(c if c.isalnum() else " " for c in accelerator.name.lower()).split())
    return generic_card(slug, memory_gb=total_mib / 1024, reported_memory_mib=total_mib, kind=accelerator.kind)


def _card_of(typed: str, num_bytes: int, is_binary: bool) -> Device:
    """GiB: the total that the driver reports. GB: as sold, read as 10**9 bytes, which never overestimates."""
    memory_gb = num_bytes / (GIB if is_binary else 10**9)
    name = f"{memory_gb:.6g}{'GiB' if is_binary else 'GB'}"
    try:
        return generic_card(name, memory_gb=memory_gb, reported_memory_mib=num_bytes // MIB if is_binary else None)
    except ValueError as error:
        raise UserError(f"{typed}: no card has this much memory. Run: foretune plan ... --on 24GiB") from error
