"""What a trial is worth by each objective, and its price."""

from collections.abc import Mapping, Sequence

from foretune.choices.sweep import OBJECTIVES, Measurement, Objective
from foretune.core.values.base import content_hash
from foretune.sweeps.strategies.seam import PointResult
from foretune.sweeps.trial_results import TrialResult

SAMPLES_OF_A_PRICE = 1000
_SECONDS_PER_HOUR = 3600


def score(result: TrialResult, objective: Objective, usd_per_hour: float | None, measure: Measurement) -> float | None:
    """speed: samples/s of all devices. memory: peak bytes. quality: held-out loss. money: USD, see `price_usd`."""
    numbers = result.numbers
    if objective == "speed":
        return numbers.samples_per_s
    if objective == "memory":
        return numbers.measured_peak_bytes
    if objective == "quality":
        return numbers.held_out_loss
    return price_usd(result, usd_per_hour, measure)


def price_usd(result: TrialResult, usd_per_hour: float | None, measure: Measurement) -> float | None:
    """train: of the training. speed: of 1,000 samples."""
    numbers = result.numbers
    if usd_per_hour is None:
        return None
    devices_usd_per_s = usd_per_hour / _SECONDS_PER_HOUR * (numbers.num_devices or 1)
    if measure == "train":
        return None if numbers.train_s is None else devices_usd_per_s * numbers.train_s
    return None if not numbers.samples_per_s else devices_usd_per_s * SAMPLES_OF_A_PRICE / numbers.samples_per_s


def spent_usd(result: TrialResult, usd_per_hour: float | None) -> float | None:
    """What the trial's devices cost while it had them, loading included."""
    if usd_per_hour is None:
        return None
    return usd_per_hour / _SECONDS_PER_HOUR * (result.numbers.num_devices or 1) * result.outcome.seconds


def point_result(results: Sequence[TrialResult], usd_per_hour: float | None, measure: Measurement) -> PointResult:
    """What came of a combination, over its seeds."""
    failed = next((result for result in results if not result.is_done), None)
    return PointResult(
        labels=results[0].labels,
        kind=results[0].outcome.kind if failed is None else failed.outcome.kind,
        scores={objective: _mean(results, objective, usd_per_hour, measure) for objective in OBJECTIVES},
    )


def by_point(results: Sequence[TrialResult]) -> Mapping[str, list[TrialResult]]:
    """Results of the same combination together, in their order."""
    found: dict[str, list[TrialResult]] = {}
    for result in results:
        found.setdefault(content_hash(dict(result.labels)), []).append(result)
    return found


def _mean(
    results: Sequence[TrialResult], objective: Objective, usd_per_hour: float | None, measure: Measurement
) -> float | None:
    values = [score(result, objective, usd_per_hour, measure) for result in results]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
