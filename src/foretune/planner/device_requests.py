"""Resolves `--on`: a device of the catalogue by any of its names, a card with some memory, or this machine's."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from foretune import catalog
from foretune.catalog.devices import HERE, Device, LinkedDevice, MixedDevices, generic_card
from foretune.core.errors import UnknownName, UserError
from foretune.core.units import GIB, MIB, bytes_of_text, bytes_text
from foretune.planner.overheads import usable_bytes
from foretune.planner.pcie import pcie_link
from foretune.planner.transfers import ASSUMED_LINK
from foretune.record.accelerators import Accelerator, accelerators_here, nvidia_pages_to_host
from foretune.record.machine import host_memory_bytes

Say = Callable[[str], None]
_EXAMPLE = "foretune plan ... --on rtx-4090:limit=20GiB, or foretune plan ... --on rtx-4090:pcie=4.0x8"


def requested_devices(typed: str, say: Say) -> Iterator[Device]:
    """Resolves one name, and what is typed behind it. `say` is called if it is not exactly a name of the catalogue.

    rtx-4090+rtx-3090 are cards of one machine.
    """
    if "+" in typed:
        yield _together([card for name in typed.split("+") for card in requested_devices(name.strip(), say)], typed)
        return
    name, *settings = typed.split(":")
    for device in _named(name.strip(), say):
        yield _with_settings(device, settings, typed)


def _together(cards: Sequence[Device], typed: str) -> Device:
    """Returns cards of one machine that train together."""
    if len({card.name for card in cards}) == 1:
        raise UserError(
            f"{typed}: equal cards are one device and their number. Run: foretune plan ... --on "
            f"{cards[0].name} parallel.devices={len(cards)}"
        )
    if len({card.kind for card in cards}) > 1 or cards[0].kind not in ("cuda", "rocm"):
        raise UserError(
            f"{typed}: only GPUs of one vendor train together. Run: foretune plan ... --on {typed.replace('+', ',')}"
        )
    if any(card.num_logical_devices > 1 for card in cards):
        raise UserError(f"{typed}: a card that is several devices is only planned with its like")
    least = min(cards, key=usable_bytes)
    fields = {key: value for key, value in least.__dict__.items() if key in Device.model_fields}
    name = "+".join(card.name for card in cards)
    return MixedDevices.model_construct(**{**fields, "name": name}, cards=tuple(cards), least=least)


def _with_settings(device: Device, settings: Sequence[str], typed: str) -> Device:
    """Applies `limit=20GiB` and `pcie=4.0x8`."""
    if not settings:
        return device
    found = {}
    for setting in settings:
        key, _, value = (part.strip().lower() for part in setting.partition("="))
        if key not in ("limit", "pcie") or key in found:
            raise UserError(f"{typed}: {setting!r} is not a setting of a device. Run: {_EXAMPLE}")
        found[key] = value
    changed = _limited(device, found["limit"], typed) if "limit" in found else device
    changed = _linked(changed, found["pcie"], typed) if "pcie" in found else changed
    settings_typed = ":".join(f"{key}={_as_written(value)}" for key, value in found.items())
    return changed.model_copy(update={"name": f"{device.name}:{settings_typed}"})


def _as_written(value: str) -> str:
    return value.replace("gib", "GiB").replace("gb", "GB").replace("mib", "MiB").replace(" ", "")


def _limited(device: Device, value: str, typed: str) -> Device:
    """Returns the device with so much usable memory: another process, or a setting of this one, has the rest."""
    size = bytes_of_text(value)
    usable = usable_bytes(device)
    if size is None or size[0] < MIB:
        raise UserError(f"{typed}: limit needs a size. Run: {_EXAMPLE}")
    if size[0] > usable:
        raise UserError(f"{typed}: a process can use at most {bytes_text(usable)} anyway. Leave out the limit")
    if device.kind in ("cpu", "mps"):
        # What is usable is a part of the whole, or the whole without the system's.
        share = size[0] / usable if device.kind == "mps" else 1.0
        whole_gb = device.memory_gb * share if device.kind == "mps" else device.memory_gb - (usable - size[0]) / GIB
        return device.model_copy(update={"memory_gb": whole_gb})
    reserved_bytes = usable_bytes(device.model_copy(update={"reported_memory_mib": 0}))
    total_mib = (size[0] - reserved_bytes) // MIB * device.num_logical_devices
    return device.model_copy(update={"reported_memory_mib": total_mib, "reported_memory_source": "as given"})


def _linked(device: Device, value: str, typed: str) -> Device:
    link = pcie_link(value)
    if link is None or device.kind in ("cpu", "mps"):
        reason = "pcie needs a generation and lanes" if link is None else f"{device.name} shares the host's memory"
        raise UserError(f"{typed}: {reason}. Run: {_EXAMPLE}")
    return LinkedDevice.model_construct(**device.__dict__, host_link=link.name, host_gb_per_s=link.gb_per_s)


def _named(typed: str, say: Say) -> Iterator[Device]:
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
    pages = accelerator.kind == "cuda" and nvidia_pages_to_host()
    row = catalog.device_by_driver_name(accelerator.name, accelerator.total_bytes, accelerator.kind)
    if row is not None:
        update = {"reported_memory_mib": total_mib * row.num_logical_devices, "pages_to_host": pages}
        return row.model_copy(update=update)
    slug = "-".join("".join(c if c.isalnum() else " " for c in accelerator.name.lower()).split())
    card = generic_card(slug, memory_gb=total_mib / 1024, reported_memory_mib=total_mib, kind=accelerator.kind)
    return card.model_copy(update={"pages_to_host": pages})


def _card_of(typed: str, num_bytes: int, is_binary: bool) -> Device:
    """GiB: the total that the driver reports. GB: as sold, read as 10**9 bytes, which never overestimates."""
    memory_gb = num_bytes / (GIB if is_binary else 10**9)
    name = f"{memory_gb:.6g}{'GiB' if is_binary else 'GB'}"
    try:
        return generic_card(name, memory_gb=memory_gb, reported_memory_mib=num_bytes // MIB if is_binary else None)
    except ValueError as error:
        raise UserError(f"{typed}: no card has this much memory. Run: foretune plan ... --on 24GiB") from error
