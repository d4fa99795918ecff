"""What an hour of a device costs, by its name alone: asked for each of many runs, at each look."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from foretune.analyse.money import catalogue_device


def usd_per_hour_of(environment: Mapping[str, Any]) -> float | None:
    """The catalogue's price of one device; None where it has none, as for one's own processor."""
    torch = environment.get("torch")
    devices = torch.get("devices") if isinstance(torch, dict) else None
    first = devices[0] if isinstance(devices, list) and devices else None
    return usd_per_hour(first.get("name"), first.get("memory_bytes")) if isinstance(first, dict) else None


def usd_per_hour(name: object, memory_bytes: object) -> float | None:
    """The same for a device as its driver names it."""
    if not isinstance(name, str):
        return None
    return _usd_per_hour(name, memory_bytes if isinstance(memory_bytes, int) else 0)


@lru_cache(maxsize=1024)
def _usd_per_hour(name: str, memory_bytes: int) -> float | None:
    device = catalogue_device({"torch": {"devices": [{"name": name, "memory_bytes": memory_bytes}]}})
    return None if device is None else device.price_usd_per_hour
