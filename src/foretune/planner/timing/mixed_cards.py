"""Cards of different kinds in one machine: every step waits for the slowest, and PCIe connects them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from foretune.catalog.devices import Device, MixedDevices, cards_of
from foretune.core.units import rounded_share_text
from foretune.core.values.plan_time import StepTime
from foretune.planner.pcie import PcieLink
from foretune.planner.timing.forecast import seconds_on, step_time
from foretune.planner.timing.step_time import TimedStep
from foretune.planner.timing.terms import Terms
from foretune.planner.traces import Traces
from foretune.planner.transfers import host_link


@dataclass(frozen=True)
class TimedCard:
    """A card with the step as if all others were as fast."""

    card: Device
    time: StepTime


def slowest_card(step: TimedStep, traces: Traces, device: Device, terms: Terms) -> TimedCard:
    """Returns the card that a step waits for. Raises `NotKnown` if a card's speed is not known."""
    return max(_timed(step, traces, device, terms), key=lambda timed: timed.time.step_s)


def _timed(step: TimedStep, traces: Traces, device: Device, terms: Terms) -> Iterator[TimedCard]:
    links = terms_on(device, terms).links
    for card in dict.fromkeys(cards_of(device)):
        speed = terms.speeds(card)
        seconds = seconds_on(step, traces, card, speed, links)
        yield TimedCard(card, step_time(seconds, step.experiment, card, speed))


def terms_on(device: Device, terms: Terms) -> Terms:
    """Returns the terms with the link that cards of different kinds have, unless the user stated one."""
    if not isinstance(device, MixedDevices) or terms.links.pcie is not None:
        return terms
    slowest = min((host_link(card) for card in device.cards), key=lambda link: link.gb_per_s)
    pcie = PcieLink(slowest.name, slowest.gb_per_s)
    return replace(terms, links=replace(terms.links, nvlink=False, pcie=pcie, is_pcie_given=False))


def with_average_power(card: Device, device: Device) -> Device:
    """Returns the card with the power of the average card."""
    powers = [one.tdp_w for one in cards_of(device) if one.tdp_w is not None]
    power_w = sum(powers) / len(powers) if len(powers) == len(cards_of(device)) else None
    return card.model_copy(update={"tdp_w": power_w})


def mixed_words(step: TimedStep, traces: Traces, device: Device, terms: Terms) -> Iterator[str]:
    """Yields who waits for whom, and whose memory decides."""
    if not isinstance(device, MixedDevices):
        return
    slowest = slowest_card(step, traces, device, terms)
    idle = [
        f"{timed.card.name} for {rounded_share_text(1 - timed.time.step_s / slowest.time.step_s)}"
        for timed in _timed(step, traces, device, terms)
        if timed.time.step_s < slowest.time.step_s
    ]
    yield f"every card has the same batch, so each step waits for {slowest.card.name}"
    if idle:
        yield f"idle: {', '.join(idle)} of a step"
    yield f"memory is judged on {device.least.name}, which has least"
