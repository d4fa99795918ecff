"""Where the processes of a run compute: which GPU of which host each of them has."""

import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from foretune.core.errors import Refused
from foretune.training.ranks import Ranks

_NO_UUID = "00000000-0000-0000-0000-000000000000"
"""What drivers report for a device without one."""


@dataclass(frozen=True)
class DevicePlace:
    """The device of one process."""

    host: str
    device: str
    """As its process numbers it: two processes that see one GPU each both have cuda:0."""
    uuid: str | None = None
    pci_address: str | None = None
    """Domain, bus and device, such as 0000:0c:00. None where there is no GPU, or torch does not report it."""

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def gpu(self) -> tuple[str, ...]:
        """Equal for two processes on the same GPU, even if each of them is in a container of its own."""
        if self.uuid is not None:
            return self.uuid, self.pci_address or ""
        return self.host, self.pci_address or self.device


def place_on(device: torch.device) -> DevicePlace:
    """Returns where this process computes."""
    host = socket.gethostname()
    if device.type != "cuda":
        return DevicePlace(host, str(device))
    properties = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", None) or _NO_UUID)
    domain, bus, number = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    has_address = domain is not None and bus is not None and number is not None
    address = f"{domain:04x}:{bus:02x}:{number:02x}" if has_address else None
    return DevicePlace(host, str(device), None if uuid == _NO_UUID else uuid, address)


def places_of(ranks: Ranks, device: torch.device) -> tuple[DevicePlace, ...]:
    """Returns the places of all processes, by rank. All of them call it; refused where several have the same GPU."""
    places = tuple(DevicePlace(**place) for place in ranks.from_all(asdict(place_on(device))))
    num_gpus = len({place.gpu for place in places if place.is_gpu})
    num_processes = sum(place.is_gpu for place in places)
    if num_gpus < num_processes:
        raise Refused(
            f"parallel.devices: {num_processes} processes share {num_gpus} GPU{'s' if num_gpus > 1 else ''}, and each "
            f"needs its own. Nearest: parallel.devices={num_gpus}, or one GPU for each process, such as srun "
            "--gpus-per-task=1"
        )
    return places


def watched_by(rank: int, places: Sequence[DevicePlace]) -> tuple[DevicePlace, ...]:
    """Returns the places whose sensors this process reads: those of its host, if it is the first process there."""
    on_host = [other for other, place in enumerate(places) if place.host == places[rank].host]
    return tuple(places[other] for other in on_host) if rank == on_host[0] else ()
