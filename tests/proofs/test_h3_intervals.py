"""H3: intervals that cover the truth as often as they say, on unkind series: with two modes, a memory, or spikes.

Controls: intervals for independent values, which such series are not.
"""

import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest

from foretune.stats.intervals import typical
from tests.conftest import ProofSize
from tests.proofs.planted_series import KINDS, Source, never_steady, repeated

pytestmark = pytest.mark.proof

_NUM_STEPS = 200
_NUM_REPEATS = 10
_STEPS_OF_A_REPEAT = 50


def textbook_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and 1.96 standard errors, as if the values were independent."""
    reach = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - reach, statistics.fmean(values) + reach


def heap_interval(runs: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The interval of a median by ranks, as if the steps of all processes were independent values."""
    ordered = sorted(value for run in runs for value in run)
    reach = 0.98 * math.sqrt(len(ordered))
    return ordered[int(len(ordered) / 2 - reach)], ordered[int(len(ordered) / 2 + reach)]


def allowed(num: int) -> tuple[float, float]:
    """93 to 97 % at full size; a smaller sample also varies by chance, within three standard errors."""
    chance = 3 * math.sqrt(0.05 * 0.95 / num) if num < 1000 else 0.0
    return 0.93 - chance, 0.97 + chance


@pytest.mark.parametrize("kind", KINDS)
def test_h3_the_interval_of_one_run_covers_the_median(
    kind: str, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    draw, num = random.Random(f"h3 {kind}"), proof_size(1000, 150)
    covered = covered_by_textbook = flagged = 0
    for _ in range(num):
        source = Source.drawn(kind, draw)
        series = source.series(_NUM_STEPS, draw)
        found = typical([series])
        low, high = textbook_interval(series)
        covered_by_textbook += low <= source.median <= high
        if found.value is None:
            flagged += 1
            continue
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= source.median <= found.high
    share = covered / (num - flagged)
    report_figure(
        f"{kind}, one run of {_NUM_STEPS} steps: {share:.1%} of {num - flagged} intervals cover the truth "
        f"({flagged} of {num} called not steady); textbook {covered_by_textbook / num:.1%}"
    )
    least, most = allowed(num - flagged)
    assert least <= share <= most
    assert flagged <= max(0.03 * num, 5)
    # The control: an interval for independent values around a mean is wrong on every one of these kinds.
    assert covered_by_textbook / num < 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_h3_the_interval_of_repeats_covers_the_median(
    kind: str, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    """Processes differ by 3 %, more than steps of one process let see."""
    draw, num = random.Random(f"h3 repeats {kind}"), proof_size(1000, 60)
    covered = covered_by_heap = 0
    for _ in range(num):
        source = Source.drawn(kind, draw)
        runs = repeated(source, _NUM_REPEATS, _STEPS_OF_A_REPEAT, draw)
        found = typical(runs)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= source.median <= found.high
        low, high = heap_interval(runs)
        covered_by_heap += low <= source.median <= high
    report_figure(
        f"{kind}, {_NUM_REPEATS} processes of {_STEPS_OF_A_REPEAT} steps: {covered / num:.1%} of {num} intervals "
        f"cover the truth; all steps as one heap: {covered_by_heap / num:.1%}"
    )
    least, most = allowed(num)
    assert least <= covered / num <= most
    assert covered_by_heap / num < 0.9


def test_h3_drifting_series_are_flagged_not_summarised(
    proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    draw, num = random.Random("h3 drifting"), proof_size(1000, 150)
    flagged = 0
    for number in range(num):
        steady = Source.drawn(("autocorrelated", "spiked")[number % 2], draw).series(_NUM_STEPS, draw)
        found = typical([never_steady(steady, ("rising", "falling")[number // 2 % 2], draw)])
        if found.value is None:
            assert found.low is None
            assert found.high is None
            assert any("drifting" in text or "never steady" in text for text in found.warnings)
            flagged += 1
    report_figure(f"{flagged} of {num} drifting series flagged and not summarised")
    assert flagged >= 0.95 * num
