"""What `torch.cuda.get_device_properties` returns for a simulated device."""

import os
import uuid
from dataclasses import dataclass

from simaccel.personalities import Personality, personality, uuid_of, visible_cards


@dataclass(frozen=True)
class DeviceProperties:
    """The fields of torch's class of the same purpose."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    uuid: uuid.UUID
    pci_bus_id: int
    gcnArchName: str  # noqa: N815 - torch's name
    warp_size: int
    pci_device_id: int = 0
    pci_domain_id: int = 0
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    L2_cache_size: int = 72 << 20
    max_threads_per_multi_processor: int = 1536
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 101376
    shared_memory_per_multiprocessor: int = 102400
    clock_rate: int = 2520000
    memory_clock_rate: int = 10501000
    memory_bus_width: int = 384


class Machine:
    """The simulated cards of this machine, and which of them this process sees."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_cards = int(os.environ.get("SIMACCEL_DEVICES") or 2)
        self.memory_bytes = int(os.environ.get("SIMACCEL_MEMORY_MIB") or self.personality.memory_mib) << 20
        self.cards: list[int] = []
        self.look()

    @property
    def personality(self) -> Personality:
        """The kind of the cards."""
        return personality(self.name)

    def look(self) -> int:
        """Reads the variables that hide cards, as a driver does when it is initialised; returns the number of cards."""
        self.cards = visible_cards(self.name, self.num_cards, os.environ)
        return len(self.cards)

    def properties(self, index: int) -> DeviceProperties:
        """Returns the properties of a visible card."""
        card, kind = self.cards[index], self.personality
        return DeviceProperties(
            name=kind.title,
            major=kind.capability[0],
            minor=kind.capability[1],
            total_memory=self.memory_bytes,
            multi_processor_count=kind.num_processors,
            uuid=uuid_of(self.name, card),
            pci_bus_id=0x11 + 0x10 * card,
            gcnArchName=kind.gcn_architecture,
            warp_size=kind.warp_size,
        )
