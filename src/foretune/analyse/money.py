"""What measured time costs, and how old the price is."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from foretune import catalog
from foretune.analyse.run_data import RunData
from foretune.catalog.devices import Device

_SECONDS_PER_HOUR = 3600
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_NAMED_MONTH = re.compile(rf"\b({'|'.join(month[:3] for month in _MONTHS)})[a-z]*\.? (20\d\d)\b")
_MONTHS_PER_YEAR = 12
# Sizes, mounts and kinds of memory are no names of chips.
_NO_CHIP = re.compile(r"^(\d+(gb|gib|core)?|sxm\d*|hbm\d*e?)$(?<!\d{4})")
_SISTERS = frozenset({"ti", "super", "ada", "pro", "laptop"})


@dataclass(frozen=True)
class Price:
    """Rent of one device for an hour, and where it is from."""

    usd_per_hour: float
    source: str
    low_usd_per_hour: float | None = None
    """The lowest and the highest that were seen, where several were."""
    high_usd_per_hour: float | None = None

    def usd(self, seconds: float, num_devices: int = 1) -> float:
        return self.usd_per_hour * seconds / _SECONDS_PER_HOUR * num_devices


def run_price(run: RunData) -> Price | None:
    """The price of a device of a run: as the study says that the run is part of, else the catalogue's."""
    stated = (run.effective.get("study") or {}).get("usd_per_hour")
    if stated is None:
        return catalogue_price(run)
    return Price(float(stated) / run.experiment.parallel.devices, "as its study says")


def pricing(usd_per_hour: float | None) -> Callable[[RunData], Price | None]:
    """The price of a device of a run: the user's, else that of its study, else the catalogue's."""
    if usd_per_hour is not None:
        price = Price(usd_per_hour, "as given")
        return lambda run: price  # noqa: ARG005
    return run_price


def catalogue_price(run: RunData) -> Price | None:
    """The price of the device that a run was made on; None where the catalogue has none, as for one's own processor."""
    # The environment names the GPUs of the machine, also where a run does not use them.
    device = None if run.experiment.parallel.device == "cpu" else catalogue_device(run.environment)
    if device is None or device.price_usd_per_hour is None:
        return None
    low, high = device.price_range_usd_per_hour or (None, None)
    source = f"{device.title}: {device.price_source}{_age(device.price_source, run.started_s)}"
    return Price(device.price_usd_per_hour, source, low, high)


def catalogue_device(environment: Mapping[str, Any]) -> Device | None:
    """The row that the driver's name and the memory speak for; None where no row has that name."""
    devices = (environment.get("torch") or {}).get("devices") or ()
    if not devices:
        return None
    words, held_bytes = _words(str(devices[0].get("name", ""))), devices[0].get("memory_bytes") or 0
    same = [row for row in catalog.devices().values() if _identity(row.title) == _identity_in(words)]
    return min(
        same,
        key=lambda row: (not _forms(_words(row.title)) & _forms(words), abs(row.memory_bytes - held_bytes), row.name),
        default=None,
    )


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))


def _identity(title: str) -> frozenset[str]:
    return _identity_in(_words(title))


def _identity_in(words: frozenset[str]) -> frozenset[str]:
    """What tells one chip from another: its number, and the few words that make another chip of the same number."""
    numbers = {word for word in words if re.search(r"\d", word) and not _NO_CHIP.match(word)}
    return frozenset(numbers | (words & _SISTERS))


def _forms(words: frozenset[str]) -> frozenset[str]:
    """How it is mounted; cards with stacked memory of the third kind are not sold otherwise."""
    found = {"sxm" for word in words if word.startswith(("sxm", "hbm3"))}
    return frozenset(found | (words & {"pcie"}))


def _age(source: str, started_s: float | None) -> str:
    """How old a price was when the run was made; not how old it is now, so that a report stays what it is."""
    month = _date(source)
    if month is None:
        year = re.search(r"\b(20\d\d)\b", source)
        return f"; of {year[1]}" if year else "; its date is not known"
    if started_s is None:
        return ""
    run = time.gmtime(started_s)
    months = run.tm_year * _MONTHS_PER_YEAR + run.tm_mon - month
    if months <= 0:
        return "; of the month of the run or later"
    return f"; {months} month{'s' * (months > 1)} old when the run was made"


def _date(source: str) -> int | None:
    """Months since the year 0."""
    if named := _NAMED_MONTH.search(source):
        return int(named[2]) * _MONTHS_PER_YEAR + [name[:3] for name in _MONTHS].index(named[1]) + 1
    if numbered := re.search(r"\b(20\d\d)-(\d\d)\b", source):
        return int(numbered[1]) * _MONTHS_PER_YEAR + int(numbered[2])
    return None
