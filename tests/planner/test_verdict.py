"""Verdicts over hand-made steps on a card of 100 MiB."""

from dataclasses import replace

import pytest

from foretune.core.units import MIB
from foretune.planner.block_events import Event
from foretune.planner.overheads import Overhead, Range
from foretune.planner.verdict import COMPILED_ERROR, TRACE_ERROR, ErrorShares, decide, judge

USABLE = 100 * MIB
TENTH, NONE = ErrorShares(0.1, 0.1), ErrorShares(0, 0)
PLAIN = Overhead(
    context=Range(4 * MIB, 6 * MIB, 8 * MIB, "made up"),
    driver=Range(0, 0, 0, "made up"),
    display=Range(0, 0, 0, "made up"),
    workspaces_bytes=(),
)


def _made(storage: int, num_mib: int) -> Event:
    return Event(storage, num_mib * MIB, "temporary", "forward")


def _released(storage: int) -> Event:
    return Event(storage, 0, "temporary", "forward")


@pytest.mark.parametrize(
    ("band", "verdict"),
    [
        ((80, 90, 100), "fits"),
        ((80, 90, 101), "tight"),
        ((100, 110, 120), "tight"),
        ((101, 110, 120), "does not fit"),
    ],
)
def test_the_borders(band: tuple[int, int, int], verdict: str) -> None:
    assert decide(*band, 100) == verdict


def test_the_three_totals_stand_apart() -> None:
    """One tensor of 25 MiB lies in a segment of 26 MiB; the context stands beside."""
    judgement = judge([_made(0, 25), _released(0), _made(1, 40)], PLAIN, USABLE, error_share=TENTH)
    assert judgement.allocated_bytes == 40 * MIB
    assert judgement.reserved_bytes == 66 * MIB
    assert judgement.process.likely == (66 + 6) * MIB
    assert judgement.process.low == round(66 * MIB * 0.9) + 4 * MIB
    assert judgement.process.high == round(66 * MIB * 1.1) + 8 * MIB
    assert (judgement.verdict, judgement.num_retries) == ("fits", 0)


@pytest.mark.parametrize(
    ("num_mib", "verdict"),
    # high end: 1.1 x + 8 <= 100; low end: 0.9 x + 4 > 100.
    [(82, "fits"), (84, "tight"), (106, "tight"), (108, "does not fit"), (1000, "does not fit")],
)
def test_one_large_tensor(num_mib: int, verdict: str) -> None:
    judgement = judge([_made(0, num_mib)], PLAIN, USABLE, error_share=TENTH)
    assert judgement.verdict == verdict
    assert judgement.process.low <= judgement.process.likely <= judgement.process.high


def test_what_is_only_cached_is_no_reason_to_refuse() -> None:
    """70 MiB and 80 MiB one after the other: 150 reserved without a limit, 80 on the card after giving back."""
    judgement = judge([_made(0, 70), _released(0), _made(1, 80)], PLAIN, USABLE, error_share=TENTH)
    assert judgement.reserved_bytes == 150 * MIB
    assert judgement.process.likely == (80 + 6) * MIB
    assert (judgement.verdict, judgement.num_retries) == ("tight", 1)


def test_fragments_that_cannot_be_given_back_are() -> None:
    """A part of the first 80 MiB stays in use, so its segment stays; expandable segments give its pages back."""
    events = [_made(0, 80), _released(0), _made(1, 10), _made(2, 80)]
    assert judge(events, PLAIN, USABLE, error_share=TENTH).verdict == "does not fit"
    assert judge(events, PLAIN, USABLE, error_share=TENTH, expandable_segments=True).verdict == "tight"


def test_spreads_of_driver_and_desktop_widen_the_band() -> None:
    overhead = replace(
        PLAIN, driver=Range(1 * MIB, 3 * MIB, 4 * MIB, "made up"), display=Range(0, 0, 20 * MIB, "made up")
    )
    wide = judge([_made(0, 70)], overhead, USABLE, error_share=NONE)
    assert (wide.process.low, wide.process.likely, wide.process.high) == (72 * MIB, 76 * MIB, 99 * MIB)
    assert wide.verdict == "fits"
    headless = judge([_made(0, 70)], overhead, USABLE, error_share=NONE, is_headless=True)
    assert headless.process.high == 79 * MIB


def test_workspaces_are_part_of_what_is_allocated() -> None:
    overhead = replace(PLAIN, workspaces_bytes=(32 * MIB, 32 * MIB))
    backward = _made(1, 1)._replace(phase="backward")
    assert judge([_made(0, 10), backward], overhead, USABLE).allocated_bytes == 75 * MIB
    assert judge([_made(0, 10)], overhead, USABLE).allocated_bytes == 42 * MIB, "autograd's thread multiplies nothing"
    large = [_made(0, 2048)]
    assert judge(large, overhead, USABLE).allocated_bytes == (2048 + 64) * MIB


def test_the_workspaces_of_a_small_run_take_free_blocks_as_they_do_there() -> None:
    """A free block that is at most 1 MiB larger than a workspace is given to it whole."""
    overhead = replace(PLAIN, workspaces_bytes=(8 * MIB, 8 * MIB))
    backward = _made(2, 2)._replace(phase="backward")
    # A segment of 20 MiB has 8 of the first workspace, 3 and 9. The second workspace takes the 9 that are released.
    events = [_made(0, 3), _made(1, 9), _released(1), backward]
    assert judge(events, overhead, USABLE).allocated_bytes == (8 + 3 + 9 + 2) * MIB


def test_a_small_run_may_take_one_more_segment_than_planned() -> None:
    """A tenth of 10 MiB is less than the 20 MiB that the allocator reserves for a large tensor."""
    overhead = replace(PLAIN, workspaces_bytes=(2 * MIB, 2 * MIB))
    small, large = (judge([_made(0, num_mib)], overhead, USABLE, error_share=TENTH) for num_mib in (10, 4096))
    beside = overhead.context.high
    assert small.process.high == small.reserved_bytes + 20 * MIB + beside
    assert large.process.high == large.reserved_bytes + round(0.1 * large.reserved_bytes) + beside


def test_a_step_of_nothing_fits() -> None:
    judgement = judge([], PLAIN, USABLE)
    assert (judgement.allocated_bytes, judgement.verdict) == (0, "fits")


@pytest.mark.parametrize("num_mib", range(70, 130))
def test_compiling_never_makes_a_verdict_better(num_mib: int) -> None:
    """What is not modelled makes a forecast less certain. That is no reason to say that it may fit after all."""
    verdicts = ("fits", "tight", "does not fit")
    plain, compiled = (
        judge([_made(0, num_mib)], PLAIN, USABLE, error_share=share) for share in (TRACE_ERROR, COMPILED_ERROR)
    )
    assert verdicts.index(compiled.verdict) >= verdicts.index(plain.verdict)
    assert compiled.process.high > plain.process.high
