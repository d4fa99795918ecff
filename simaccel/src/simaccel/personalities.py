"""The GPUs that can be simulated: what torch reports about each of them."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Personality:
    """A GPU as its driver and torch describe it."""

    title: str
    """Name of the device in `torch.cuda.get_device_name`."""
    capability: tuple[int, int]
    memory_mib: int
    """Total memory in `torch.cuda.get_device_properties`: less than what the card is sold with."""
    num_processors: int
    architectures: str
    """Architectures that torch's build for this GPU is compiled for."""
    cuda_version: str | None = "13.0"
    hip_version: str | None = None
    gcn_architecture: str = ""
    warp_size: int = 32
    blas_workspace_bytes: int = (2 * 4096 + 8 * 16) << 10
    """Workspace of a cuBLAS handle on one stream: CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8, or 32 MiB since Hopper."""
    matmul_workspace_bytes: int = 1 << 20
    """Workspace of cuBLASLt, where it does not share the other one."""

    @property
    def is_rocm(self) -> bool:
        """Whether torch is a build for ROCm."""
        return self.hip_version is not None


_CUDA_ARCHITECTURES = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"

# Memory is what torch reports: totals in out-of-memory messages of these cards.
PERSONALITIES: Mapping[str, Personality] = {
    "cuda": Personality("Simulated GPU", (8, 9), 8192, 128, _CUDA_ARCHITECTURES),
    "rtx-4090": Personality("NVIDIA GeForce RTX 4090", (8, 9), 24197, 128, _CUDA_ARCHITECTURES),
    "t4": Personality("Tesla T4", (7, 5), 14920, 40, _CUDA_ARCHITECTURES),
    "h100": Personality(
        "NVIDIA H100 80GB HBM3", (9, 0), 81080, 132, _CUDA_ARCHITECTURES, blas_workspace_bytes=32 << 20
    ),
    "mi300x": Personality(
        "AMD Instinct MI300X",
        (9, 4),
        196592,
        304,
        "gfx90a gfx942 gfx950 gfx1100",
        cuda_version=None,
        hip_version="7.1.25424",
        gcn_architecture="gfx942:sramecc+:xnack-",
        warp_size=64,
        blas_workspace_bytes=128 << 20,
        matmul_workspace_bytes=76 << 20,
    ),
}


def personality(name: str) -> Personality:
    """Returns the GPU that SIMACCEL names."""
    if name not in PERSONALITIES:
        raise ValueError(f"SIMACCEL={name}: no such GPU can be simulated. Choose one of {', '.join(PERSONALITIES)}.")
    return PERSONALITIES[name]


def uuid_of(name: str, number: int) -> uuid.UUID:
    """Returns the UUID of a card of this machine; it does not depend on which cards a process sees."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"simaccel/{name}/{number}")


def visible_cards(name: str, num_cards: int, environment: Mapping[str, str]) -> list[int]:
    """Returns the numbers of the cards that a process sees, in its order.

    As the drivers do it: CUDA_VISIBLE_DEVICES lists numbers or UUIDs and ends at the first that does not exist; a
    number that is listed twice hides all cards. On ROCm, ROCR_VISIBLE_DEVICES chooses first. HIP_VISIBLE_DEVICES, or
    CUDA_VISIBLE_DEVICES without it, counts among the cards that are left.
    """
    cards = list(range(num_cards))
    if not personality(name).is_rocm:
        return _chosen(environment.get("CUDA_VISIBLE_DEVICES"), cards, name)
    cards = _chosen(environment.get("ROCR_VISIBLE_DEVICES"), cards, name)
    return _chosen(environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES")), cards, name)


def _chosen(listed: str | None, cards: list[int], name: str) -> list[int]:
    if listed is None:
        return cards
    chosen: list[int] = []
    for entry in (part.strip() for part in listed.split(",")):
        if entry.startswith("GPU-"):
            matches = [card for card in cards if f"GPU-{uuid_of(name, card)}".startswith(entry)]
        else:
            matches = [cards[int(entry)]] if entry.isdigit() and int(entry) < len(cards) else []
        if len(matches) != 1:
            break
        if matches[0] in chosen:
            return []
        chosen += matches
    return chosen
