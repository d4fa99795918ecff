"""Whether other programs had more of the machine while one side was measured: that is no difference of the runs."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from foretune.record.environment import VOLATILE

_MOST_APART = 0.5
"""Processors' worth of load, as a share of all of them, by which two sides may differ before a warning is given."""

Environments = Sequence[Mapping[str, Any]]


def busier(a: Environments, b: Environments, names: tuple[str, str]) -> list[str]:
    """A warning where the load when runs began was higher on one side; what the runs themselves take is in both."""
    loads = [[load for place in side if (load := _load(place)) is not None] for side in (a, b)]
    num_cpus = next((place["num_usable_cpus"] for place in (*a, *b) if place.get("num_usable_cpus")), None)
    if not all(loads) or num_cpus is None:
        return []
    of_a, of_b = map(statistics.median, loads)
    if abs(of_a - of_b) <= _MOST_APART * num_cpus:
        return []
    name = names[1] if of_b > of_a else names[0]
    described = f"a load of {of_a:.1f} for {names[0]} and {of_b:.1f} for {names[1]} on {num_cpus} processors"
    return [f"the machine was busier for {name}: {described}, which can make the difference; measure in turns"]


def _load(environment: Mapping[str, Any]) -> float | None:
    """The load over the minute before, as the system reported it."""
    reported = (environment.get(VOLATILE) or {}).get("load")
    try:
        return float(str(reported).split()[0])
    except (ValueError, IndexError):
        return None
