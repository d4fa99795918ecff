"""After `foretune calibrate`, planned step times are those that are measured on this CPU."""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from foretune.core.observer import Observer
from foretune.core.values.device_profile import DeviceProfile
from foretune.measure.calibration.calibrating import Threads, calibrate_device
from foretune.planner.timing.calibrated_speed import CalibratedSpeed
from foretune.record.device_profiles import store_profile
from tests.conftest import ProofSize
from tests.proofs.calibrated_cases import by_family, cases, constant_rate_errors, measured, planned

pytestmark = [pytest.mark.proof, pytest.mark.takes_turns]

LIMIT = 0.15
"""Of the median error."""
_NUM_DRAWS = 2000
_PROBES = ((64, 64, 64), (256, 256, 256), (1024, 64, 576))


def test_planned_steps_are_those_measured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    """Plans by a calibration before the steps, and by one after them: a machine that changed meanwhile is seen, and
    fails nothing unless both are off. Nothing is fitted.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chosen, budget_s = cases()[: proof_size(28, 5)], proof_size(30, 8)
    profiles, plans = [_calibrated(budget_s)], [[planned(case, tmp_path) for case in chosen]]
    times_s = measured(chosen, tmp_path, proof_size(10, 4))
    profiles.append(_calibrated(budget_s))
    plans.append([planned(case, tmp_path) for case in chosen])
    fastest_s, median_s = [min(found) for found in times_s], [statistics.median(found) for found in times_s]
    for case, before, after, seconds in zip(chosen, *plans, fastest_s, strict=True):
        report_figure(
            f"{case}: planned {1000 * before.step_s:.1f} ms (after {1000 * after.step_s:.1f}), measured "
            f"{1000 * seconds:.1f} ms: {before.step_s / seconds - 1:+.0%}"
        )
    errors = [[plan.step_s / s - 1 for plan, s in zip(steps, fastest_s, strict=True)] for steps in plans]
    sizes = [[abs(error) for error in found] for found in errors]
    baseline = statistics.median(constant_rate_errors(plans[0], fastest_s))
    of_median = statistics.median(abs(p.step_s / s - 1) for p, s in zip(plans[0], median_s, strict=True))
    report_figure(
        f"{len(chosen)} configurations: median error {statistics.median(sizes[0]):.1%} (by the calibration after them "
        f"{statistics.median(sizes[1]):.1%}; of median steps {of_median:.1%}), largest {max(sizes[0]):.0%}; one rate "
        f"fitted to all: {baseline:.0%}; kernels after over before: {_changed(*profiles):.2f}"
    )
    report_figure("median by family: " + by_family(chosen, errors[0], "{:+.0%}".format))
    assert min(map(_low_end, sizes)) <= LIMIT
    assert min(map(statistics.median, sizes)) < baseline


def _calibrated(budget_s: float) -> DeviceProfile:
    """As `foretune calibrate` does it, with so much time of the processor: a busy machine gives it in more time."""
    profile = calibrate_device(
        torch.device("cpu"), Threads(1, is_default=True), budget_s, Observer(), now=time.thread_time
    )
    store_profile(profile)
    return profile


def _low_end(errors: Sequence[float]) -> float:
    """Of the interval of the median error: configurations are resampled."""
    draw = random.Random("calibrated")
    medians = sorted(statistics.median(draw.choices(errors, k=len(errors))) for _ in range(_NUM_DRAWS))
    return medians[round(_NUM_DRAWS * 0.025)]


def _changed(before: DeviceProfile, after: DeviceProfile) -> float:
    """How many times as long products take."""
    times = [CalibratedSpeed(profile, attention_format="fp32") for profile in (before, after)]
    ratios = [times[1].product_s(1, *probe, "fp32") / times[0].product_s(1, *probe, "fp32") for probe in _PROBES]
    return statistics.median(ratios)
