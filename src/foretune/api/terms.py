"""Speeds, prices, links and spot instances, from the options of `plan` and `recommend`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretune.core.errors import Mistakes, UserError
from foretune.core.units import seconds_of_text

if TYPE_CHECKING:
    from foretune.catalog import Device
    from foretune.planner.timing.spot import SpotTerms
    from foretune.planner.timing.terms import Terms


@dataclass(frozen=True, kw_only=True)
class TermsTyped:
    """As typed; None leaves it to the catalogue."""

    prices: Mapping[str, float] | Sequence[str] | None = None
    interconnect: str | Sequence[str] | None = None
    spot: bool = False
    interruptions_per_day: float | None = None
    restart_wait: str | None = None

    def terms(self, mistakes: Mistakes) -> "Terms":
        """Parses them, with every mistake at once."""
        from foretune.planner.timing.measured_here import speeds_of_this_machine
        from foretune.planner.timing.stated_links import AS_USUAL, links_named
        from foretune.planner.timing.terms import Terms, prices_named

        prices = self.prices or ()
        texts = [f"{name}={usd}" for name, usd in prices.items()] if isinstance(prices, Mapping) else prices
        links = [self.interconnect] if isinstance(self.interconnect, str) else self.interconnect or ()
        return Terms(
            speeds=speeds_of_this_machine(),
            prices=mistakes.attempt(prices_named, tuple(texts)) or {},
            links=mistakes.attempt(links_named, links) or AS_USUAL,
            spot=mistakes.attempt(self._spot),
        )

    def _spot(self) -> "SpotTerms | None":
        from foretune.planner.timing.spot import SpotTerms

        if not self.spot:
            return None
        rate, wait = self.interruptions_per_day, self.restart_wait
        if rate is not None and not 0 <= rate < float("inf"):
            raise UserError(f"foretune plan --interruptions-per-day {rate:g}: not a number of interruptions. Write: 2")
        wait_s = None if wait is None else seconds_of_text(wait)
        if wait is not None and wait_s is None:
            raise UserError(f"foretune plan --restart-wait {wait}: not a time. Write it with its unit: 10min")
        usual = SpotTerms()
        return SpotTerms(
            interruptions_per_day=usual.interruptions_per_day if rate is None else rate,
            wait_s=usual.wait_s if wait_s is None else wait_s,
        )


def check_spot_prices(terms: "Terms", devices: Iterable["Device"], *, any_is_enough: bool) -> None:
    """Raises where spot instances are requested on devices without a spot price: the catalogue has none."""
    names = [device.name for device in devices]
    missing = [device.name for device in devices if terms.spot_price_of(device) is None]
    if terms.spot is None or not missing or (any_is_enough and len(missing) < len(names)):
        return
    raise UserError(
        f"foretune plan --spot: the catalogue has no spot prices. Give yours, in US dollars for an hour: foretune plan "
        f"... --spot --price {missing[0]}=1.20"
    )
