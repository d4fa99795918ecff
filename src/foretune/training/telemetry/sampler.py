"""Reads all sensors once a second, in a thread; the run's own thread writes what they reported."""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from foretune.record.events import EventLog
from foretune.training.places import DevicePlace
from foretune.training.telemetry.amd import AmdSensor
from foretune.training.telemetry.energy_sum import EnergySum
from foretune.training.telemetry.host import HostSensor
from foretune.training.telemetry.nvidia import NvidiaSensor
from foretune.training.telemetry.rapl import RaplSensor
from foretune.training.telemetry.sensor import GPU_SOURCES, Quantities, Sensor

_EVERY_S = 1.0
_NUM_KEPT = 120


def open_sensors(places: Sequence[DevicePlace] | None = None) -> list[Sensor]:
    """Every sensor that this machine has. With places, of its GPUs only those where a run computes."""
    uuids = addresses = None
    if places is not None:
        uuids = [place.uuid for place in places if place.uuid is not None]
        addresses = [place.pci_address for place in places if place.pci_address is not None]
    found = (HostSensor.open(), NvidiaSensor.open(uuids), AmdSensor.open(addresses), RaplSensor.open())
    return [sensor for sensor in found if sensor is not None]


class Sampler:
    """An instrument: `telemetry` events, one for each reading, and the energy of the time in between."""

    def __init__(self, events: EventLog, sensors: Sequence[Sensor], every_s: float = _EVERY_S) -> None:
        self._events, self._sensors, self._every_s = events, list(sensors), every_s
        self._unwritten: deque[tuple[float, Mapping[str, Quantities]]] = deque()
        self.recent: deque[tuple[float, Mapping[str, Quantities]]] = deque(maxlen=_NUM_KEPT)
        """(time, reading), the newest last."""
        self.energy = EnergySum()
        self.failed: list[str] = []
        """Sensors that were switched off because they failed, with the reason."""
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._sample, name="telemetry", daemon=True)
        self._is_closed = not self._sensors

    def start(self) -> None:
        if self._sensors:
            self.thread.start()

    def before_step(self, step: int) -> None:
        if not self._is_closed and self.thread.ident is None:
            self.start()

    def after_step(self, step: int) -> None:
        self._write()

    def close(self) -> None:
        """A last reading, so that the energy is that of the whole time."""
        if self._is_closed:
            return
        self._is_closed = True
        self._over.set()
        if self.thread.ident is not None:
            self.thread.join()
        self._write()
        for sensor in self._sensors:
            sensor.close()

    def _sample(self) -> None:
        self._read()
        while not self._over.wait(self._every_s):
            self._read()
        self._read()

    def _read(self) -> None:
        reading: dict[str, Quantities] = {}
        for sensor in self._sensors[:]:
            try:
                reading.update(sensor.read())
            except Exception as error:  # noqa: BLE001 - a sensor that fails is absent from then on; the run is not
                self._sensors.remove(sensor)
                self.failed.append(f"{type(sensor).__name__}: {type(error).__name__}: {error}")
        self.energy.add(time.monotonic(), reading)
        if reading:
            self._unwritten.append((time.time(), reading))
            self.recent.append((time.time(), reading))

    def _write(self) -> None:
        while self._unwritten:
            read_s, reading = self._unwritten.popleft()
            self._events.append("telemetry", read_s=round(read_s, 3), **grouped(reading))


def grouped(reading: Mapping[str, Quantities]) -> dict[str, Any]:
    """As an event tells it: the host, the processors whose energy is counted, the devices; nothing empty."""
    named = {source: {"source": source, **reported} for source, reported in reading.items() if reported}
    found = {
        "host": dict(reading.get("host", {})),
        "packages": [reported for source, reported in named.items() if source.startswith("rapl:")],
        "devices": [reported for source, reported in named.items() if source.startswith(GPU_SOURCES)],
    }
    return {name: reported for name, reported in found.items() if reported}
