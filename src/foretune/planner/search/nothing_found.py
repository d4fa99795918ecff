"""Why a search has no answer, and what comes nearest."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from foretune.catalog.devices import Device
from foretune.core.units import counted_text, duration_text, usd_text
from foretune.planner.search.best import Effort, best_of
from foretune.planner.search.options import Option
from foretune.planner.search.sought import Sought


def nothing_found(
    possible: Sequence[Option],
    devices: Sequence[Device],
    sought: Sought,
    left_out: Mapping[str, Sequence[str]],
    effort: Effort,
) -> str:
    """Returns the sentences of the error."""
    searched = len(devices) - sum(map(len, left_out.values()))
    where = counted_text(searched, "devices")
    sentences = [f"None of {effort.num_options:,} configurations on {where} meets the request."]
    if not effort.num_options:
        sentences = ["There is nothing to search."]
    elif not any(effort.fits(option) for option in _least_demanding(possible)):
        sentences.append("None fits in memory. Add devices: --on all.")
    else:
        sentences += _limits_in_words(possible, sought, effort)
    sentences += [f"Left out: {', '.join(names)}; not known: {reason}." for reason, names in left_out.items()]
    sentences += [f"{number:,} have no step time, not known: {reason}." for reason, number in effort.unknown.items()]
    return " ".join(sentences)


def _least_demanding(possible: Sequence[Option]) -> Iterator[Option]:
    """Yields, of each device, the option that is estimated to need least memory."""
    by_place: dict[int, Option] = {}
    for option in possible:
        least = by_place.setdefault(id(option.place), option)
        if option.setting.quick_bytes < least.setting.quick_bytes:
            by_place[id(option.place)] = option
    return iter(by_place.values())


def _limits_in_words(possible: Sequence[Option], sought: Sought, effort: Effort) -> Iterator[str]:
    limits = sought.limits
    priced = [option for option in possible if option.place.price_usd_per_hour is not None]
    if not priced and (sought.goal == "cheapest" or limits.budget_usd is not None):
        yield "No device has a price. Add --price DEVICE=USD."
        return
    if limits.deadline_s is not None:
        within = "" if limits.budget_usd is None else f" for at most {usd_text(limits.budget_usd)}"
        option, _ = best_of(possible, "fastest", replace(limits, deadline_s=None), effort)
        if option is not None:
            yield f"The fastest{within} is {_outcome(option)}. Raise --deadline, or add devices."
    if limits.budget_usd is not None:
        within = "" if limits.deadline_s is None else f" within {duration_text(limits.deadline_s)}"
        option, _ = best_of(possible, "cheapest", replace(limits, budget_usd=None), effort)
        if option is not None:
            yield (
                f"The cheapest{within} is {_outcome(option)}. Raise --budget, or state a lower price: --price "
                f"{option.place.device.name}=USD."
            )


def _outcome(option: Option) -> str:
    count = option.setting.num_devices
    device = option.place.device.name if count == 1 else f"{count} x {option.place.device.name}"
    price = "" if option.totals.usd is None else f" for {usd_text(option.totals.usd)}"
    return f"{device}: {duration_text(option.totals.total_s)}{price}"
