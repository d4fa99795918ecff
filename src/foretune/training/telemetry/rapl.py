"""Energy of processors, as Linux counts it (powercap: RAPL). Most systems let only the administrator read it."""

from collections.abc import Mapping
from pathlib import Path

from foretune.training.telemetry.sensor import Quantities

_POWERCAP = Path("/sys/class/powercap")


class RaplSensor:
    """One source for each processor package. Its counter overflows; the sum here only grows."""

    def __init__(self, zones: Mapping[str, Path]) -> None:
        self._zones = dict(zones)
        self._last_uj: dict[str, int] = {}
        self._sum_uj: dict[str, int] = {}

    @classmethod
    def open(cls, powercap: Path = _POWERCAP) -> "RaplSensor | None":
        """None where the system has no such counters, or does not let this user read them."""
        zones = {}
        for zone in sorted(powercap.glob("*-rapl:*")):
            # "intel-rapl:0" is a package; "intel-rapl:0:1" is a part of it, whose energy is in the package's. The same
            # packages are listed again as "intel-rapl-mmio:0".
            if zone.name.count(":") == 1 and "-mmio" not in zone.name and _number(zone / "energy_uj") is not None:
                name = (zone / "name").read_text(encoding="ascii").strip() if (zone / "name").is_file() else zone.name
                zones[f"rapl:{name}"] = zone
        return cls(zones) if zones else None

    def read(self) -> Mapping[str, Quantities]:
        found = {}
        for source, zone in self._zones.items():
            now_uj = _number(zone / "energy_uj")
            if now_uj is not None:
                found[source] = {"energy_j": self._grown_uj(source, zone, now_uj) / 1e6}
        return found

    def _grown_uj(self, source: str, zone: Path, now_uj: int) -> int:
        moved = now_uj - self._last_uj.get(source, now_uj)
        if moved < 0:
            moved += _number(zone / "max_energy_range_uj") or 0
        self._last_uj[source] = now_uj
        self._sum_uj[source] = self._sum_uj.get(source, 0) + max(moved, 0)
        return self._sum_uj[source]

    def close(self) -> None:
        self._last_uj.clear()


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
