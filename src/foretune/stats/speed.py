"""Speed from raw step times."""

import statistics
from collections.abc import Sequence


def median_step_s(step_times_s: Sequence[float], *, num_warmup: int) -> float | None:
    """The typical step once it is warm; None when there is no warm step."""
    warm = step_times_s[num_warmup:]
    return statistics.median(warm) if warm else None


def samples_per_s(step_times_s: Sequence[float], samples_per_step: int, *, num_warmup: int) -> float | None:
    """All samples of the warm steps over all of their time, so that slow steps count with their whole length."""
    warm = step_times_s[num_warmup:]
    total_s = sum(warm)
    return len(warm) * samples_per_step / total_s if total_s > 0 else None
