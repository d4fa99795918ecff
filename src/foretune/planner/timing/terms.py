"""What times and costs rest on besides the plan: how fast devices are, and what an hour of them costs."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from foretune import catalog
from foretune.catalog.devices import Device, MixedDevices
from foretune.core.errors import UserError
from foretune.planner.timing.device_speed import speed_of
from foretune.planner.timing.speed import DeviceSpeed
from foretune.planner.timing.spot import SpotTerms
from foretune.planner.timing.stated_links import AS_USUAL, StatedLinks

Speeds = Callable[[Device], DeviceSpeed]
"""Returns a device's speed; raises `NotKnown`."""

_DATE = re.compile(r"(?:January|February|March|April|May|June|July|August|September|October|November|December) \d{4}")
_EXAMPLE = "foretune plan ... --price h100-sxm=2.49"


@dataclass(frozen=True)
class HourlyPrice:
    """The rent of one device."""

    usd: float | None
    source: str
    """In a few words, or why there is none."""
    is_given: bool = False


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The defaults are published speeds and the catalogue's prices."""

    speeds: Speeds = speed_of
    prices: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Prices for an hour that the user gave, by the catalogue's name of the device."""
    links: StatedLinks = AS_USUAL
    """How several devices are connected."""
    spot: SpotTerms | None = None
    """With spot instances the given prices are theirs, and the catalogue's are those on demand."""

    def spot_price_of(self, device: Device) -> float | None:
        """Returns the price of an hour on spot; only the user knows it."""
        if isinstance(device, MixedDevices):
            known = [price for card in device.cards if (price := self.spot_price_of(card)) is not None]
            return sum(known) / len(known) if len(known) == len(device.cards) else None
        return self.prices.get(device.name, self.prices.get(device.row_name))

    def price_of(self, device: Device) -> HourlyPrice:
        """Returns the price of one device; of different cards in a machine, their average."""
        if isinstance(device, MixedDevices):
            prices = [self.price_of(card) for card in device.cards]
            amounts = [price.usd for price in prices if price.usd is not None]
            if len(amounts) < len(prices):
                return HourlyPrice(None, "the catalogue has no price for each of them")
            source = "; ".join(dict.fromkeys(price.source for price in prices))
            return HourlyPrice(sum(amounts) / len(amounts), f"on average; {source}", all(p.is_given for p in prices))
        given = None if self.spot is not None else self.prices.get(device.name, self.prices.get(device.row_name))
        if given is not None:
            return HourlyPrice(given, "as given", is_given=True)
        if device.price_usd_per_hour is None:
            return HourlyPrice(None, "the catalogue has no price for it")
        date = _DATE.search(device.price_source)
        return HourlyPrice(device.price_usd_per_hour, "catalogue" if date is None else f"catalogue, {date.group()}")


PUBLISHED = Terms()


def prices_named(texts: tuple[str, ...]) -> dict[str, float]:
    """Parses `--price`: a device and dollars for an hour of it."""
    found: dict[str, float] = {}
    for text in texts:
        name, separator, typed = text.rpartition("=")
        try:
            usd = float(typed.removeprefix("$"))
        except ValueError:
            usd = -1.0
        if not separator or not 0 <= usd < float("inf"):
            raise UserError(
                f"foretune plan --price {text}: not a device and its price for an hour in US dollars. Run: {_EXAMPLE}"
            )
        found[name if name in catalog.devices() else _resolved(name)] = usd
    return found


def _resolved(name: str) -> str:
    known = catalog.device_names()
    # A card of which only the memory is known has the name that was typed.
    return name if name[:1].isdigit() and name.lower().endswith("b") else known.resolve(name).name
