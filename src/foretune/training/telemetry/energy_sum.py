"""Energy from counters where there are any, and from power otherwise."""

from collections.abc import Mapping

from foretune.training.telemetry.sensor import GPU_SOURCES, Quantities


class EnergySum:
    """Adds up what each source took between the first reading and the last.

    A counter is right however rarely it is read. Power is joined by straight lines between readings.
    """

    def __init__(self) -> None:
        self._first_counter_j: dict[str, float] = {}
        self._last_power: dict[str, tuple[float, float]] = {}
        self._num_seen: dict[str, int] = {}
        self.by_source_j: dict[str, float] = {}
        self._begun_s: float | None = None
        self._last_s = 0.0

    def add(self, time_s: float, reading: Mapping[str, Quantities]) -> None:
        """A reading at a moment of a clock that only goes forward."""
        if self._begun_s is None:
            self._begun_s = time_s
        self._last_s = time_s
        for source, reported in reading.items():
            if "energy_j" in reported:
                first_j = self._first_counter_j.setdefault(source, reported["energy_j"])
                self._note(source, reported["energy_j"] - first_j)
            elif "power_w" in reported:
                self._add_power(source, time_s, reported["power_w"])

    def _add_power(self, source: str, time_s: float, power_w: float) -> None:
        before_s, before_w = self._last_power.get(source, (time_s, power_w))
        self._last_power[source] = (time_s, power_w)
        self._note(source, self.by_source_j.get(source, 0.0) + (before_w + power_w) / 2 * (time_s - before_s))

    def _note(self, source: str, energy_j: float) -> None:
        self._num_seen[source] = self._num_seen.get(source, 0) + 1
        if self._num_seen[source] > 1:  # one reading is a moment, not a stretch of time
            self.by_source_j[source] = energy_j

    @property
    def energy_j(self) -> float | None:
        """All sources together; None where none reported twice."""
        return sum(self.by_source_j.values()) if self.by_source_j else None

    @property
    def num_gpus(self) -> int:
        """GPUs whose energy is part of the sum."""
        return sum(source.startswith(GPU_SOURCES) for source in self.by_source_j)

    @property
    def mean_power_w(self) -> float | None:
        if self.energy_j is None or self._begun_s is None or self._last_s <= self._begun_s:
            return None
        return self.energy_j / (self._last_s - self._begun_s)
