"""Decides whether a run fits: from its events to the process's memory on a device, with a band and a verdict."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from foretune.catalog.backtest import backtest_record
from foretune.core.units import GIB
from foretune.planner.allocator import LARGE_SEGMENT_BYTES, OWN_ROUNDING_BYTES, CachingAllocator
from foretune.planner.block_events import Event
from foretune.planner.overheads import Overhead, with_workspaces
from foretune.planner.replay import replay

Verdict = Literal["fits", "tight", "does not fit"]
_SMALL_BYTES = GIB
"""Beside a smaller run the places of workspaces matter."""
_NUM_SAMPLED = 50
"""Requests that are compared first, before all of two runs are."""


class ErrorShares(NamedTuple):
    """The relative part of the band: how far the real peak may be below and above the prediction."""

    low: float
    high: float


TRACE_ERROR = ErrorShares(backtest_record().error_band, backtest_record().error_band)
"""Nine of ten of the published peaks that `foretune backtest` checks are within this share; its record says which, and
when. It is measured on the same backtest that uses it.
"""

COMPILED_ERROR = ErrorShares(TRACE_ERROR.low, 0.15)
"""The same for compiled blocks, which are not modelled: fused operators save less, and the compiler chooses what is
saved. The high end is chosen, not measured. The low end stays: a saving that is not modelled is not promised, so that
compilation never improves a verdict.
"""

PAGES_TO_HOST = (
    "on Windows and in WSL, NVIDIA's driver does not fail when the card is full: it moves memory to the host, and "
    "steps take many times as long. For an error instead, set CUDA - Sysmem Fallback Policy to Prefer No Sysmem "
    "Fallback in the NVIDIA Control Panel of Windows"
)
"""A warning wherever this may happen."""


@dataclass(frozen=True)
class Band:
    """Bytes of a process on a device: low, likely, high."""

    low: int
    likely: int
    high: int


@dataclass(frozen=True)
class Judgement:
    """A step on a device: the three totals, and whether it fits."""

    allocated_bytes: int
    """Peak of tensors and workspaces (max_memory_allocated)."""
    reserved_bytes: int
    """Peak of the allocator on an unlimited device (max_memory_reserved)."""
    process: Band
    """Including driver and libraries: what a monitor shows for the process."""
    usable_bytes: int
    num_retries: int
    """How often the allocator had to return memory to stay on the device, in one step."""
    verdict: Verdict


def decide(process_low: int, process_likely: int, process_high: int, usable: int) -> Verdict:
    """Returns the verdict. fits: even the high end is within the usable memory. does not fit: not even the low end is.

    tight: in between. It may run as it is; it may also need one of these: expandable segments
    (PYTORCH_ALLOC_CONF=expandable_segments:True), no desktop or other program on the card, a slightly smaller batch or
    image, one more lever. A tight run can also slow down, because the allocator returns and requests memory repeatedly.
    """
    assert process_low <= process_likely <= process_high, "a band is ordered"
    if process_high <= usable:
        return "fits"
    return "does not fit" if process_low > usable else "tight"


class Ends:
    """The ends of the band for a reserved figure.

    The relative part is the trace's error; at the high end it is at least one segment, because the allocator reserves
    nothing smaller for a large tensor. The absolute parts are the spreads of the context and of the driver's part (the
    device's usable memory is stated with the likely figure) and, at the high end, a desktop.
    """

    def __init__(
        self, overhead: Overhead, error_share: ErrorShares = TRACE_ERROR, *, is_headless: bool = False
    ) -> None:
        self._share = error_share
        context, driver = overhead.context, overhead.driver
        self._low_bytes = context.low + driver.low - driver.likely
        self.most_beside_bytes = context.high + driver.high - driver.likely
        """The most that a process on the device takes besides what the allocator reserves, with a desktop's part."""
        if not is_headless:
            self.most_beside_bytes += overhead.display.high
        # Devices without workspaces are Apple's and CPUs, which have no such segments.
        self._least_error_bytes = LARGE_SEGMENT_BYTES if overhead.workspaces_bytes else 0

    def low(self, reserved_bytes: int) -> int:
        return round(reserved_bytes * (1 - self._share.low)) + self._low_bytes

    def high(self, reserved_bytes: int) -> int:
        error_bytes = max(round(reserved_bytes * self._share.high), self._least_error_bytes)
        return reserved_bytes + error_bytes + self.most_beside_bytes

    def least_process_bytes(self, allocated_bytes: float) -> tuple[int, int]:
        """Returns a lower bound of the ends for a step that allocates this much: the allocator reserves no less."""
        return self.low(round(allocated_bytes)), self.high(round(allocated_bytes))

    def most_reserved(self, usable_bytes: int) -> int:
        """Returns how much a step may reserve by its trace so that its low end is still within the device."""
        return max(0, int((usable_bytes - self._low_bytes) / (1 - self._share.low)))


@dataclass(frozen=True)
class Held:
    """What the allocator holds for a run on an unlimited device."""

    allocated_bytes: int
    reserved_bytes: int


class Replays:
    """Cached replays without a limit: the run is the same for all devices, except for the workspaces.

    Workspaces stay, so they are added to the result of one replay, as if they were in segments of their own. Those of a
    small run are replayed with it.
    Settings that do not change the requests of a stretch, such as those of another stretch, share its replay.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, list[tuple[Sequence[Event], CachingAllocator]]] = {}
        self._recognised: dict[tuple[int, bool], tuple[Sequence[Event], CachingAllocator]] = {}
        """By identity. The events are kept, so that no others get their identity."""
        self._beside_small: dict[Hashable, CachingAllocator] = {}

    def free(self, events: Sequence[Event], overhead: Overhead, *, expandable_segments: bool) -> Held:
        found = self._replayed(events, expandable_segments=expandable_segments)
        if overhead.workspaces_bytes and found.peak_allocated_bytes < _SMALL_BYTES:
            key = (id(events), expandable_segments, overhead.workspaces_bytes)
            if key not in self._beside_small:
                all_events = with_workspaces(events, overhead, at_first_use=True)
                self._beside_small[key] = replay(all_events, expandable_segments=expandable_segments)
            found = self._beside_small[key]
            return Held(found.peak_allocated_bytes, found.peak_reserved_bytes)
        held = sum(-(-num_bytes // OWN_ROUNDING_BYTES) * OWN_ROUNDING_BYTES for num_bytes in overhead.workspaces_bytes)
        return Held(found.peak_allocated_bytes + overhead.allocated_bytes, found.peak_reserved_bytes + held)

    def _replayed(self, events: Sequence[Event], *, expandable_segments: bool) -> CachingAllocator:
        key = (id(events), expandable_segments)
        if key not in self._recognised:
            sample = tuple(event.num_bytes for event in events[:: len(events) // _NUM_SAMPLED + 1])
            alike = self._made.setdefault((expandable_segments, len(events), sample), [])
            equal = (allocator for known, allocator in alike if _requests(known) == _requests(events))
            found = next(equal, None)
            if found is None:
                found = replay(events, expandable_segments=expandable_segments)
                alike.append((events, found))
            self._recognised[key] = (events, found)
        return self._recognised[key][1]


def _requests(events: Sequence[Event]) -> list[tuple[int, int]]:
    return [(event.storage, event.num_bytes) for event in events]


def judge(
    events: Sequence[Event],
    overhead: Overhead,
    usable_bytes: int,
    *,
    expandable_segments: bool = False,
    is_headless: bool = False,
    error_share: ErrorShares = TRACE_ERROR,
    replays: Replays | None = None,
) -> Judgement:
    """Replays a step and compares it with a device.

    The high end is what the allocator would hold without a limit. The low end is what it cannot do without: it is
    replayed with the device's memory if trace, context and driver are all as small as possible, and the allocator
    returns its cache before it fails. The second replay runs only if it can change the verdict. `replays` caches the
    first for the next device.
    """
    ends = Ends(overhead, error_share, is_headless=is_headless)
    free = (replays or Replays()).free(events, overhead, expandable_segments=expandable_segments)
    num_retries, stays = 0, False
    needed_bytes = free.reserved_bytes
    if ends.high(needed_bytes) > usable_bytes:
        needed_bytes = free.allocated_bytes
        if ends.low(needed_bytes) <= usable_bytes:
            limit_bytes = ends.most_reserved(usable_bytes)
            if not overhead.workspaces_bytes and limit_bytes >= free.reserved_bytes:
                # A limit that is never reached changes nothing.
                needed_bytes, stays = free.reserved_bytes, True
            else:
                all_events = with_workspaces(events, overhead)
                squeezed = replay(all_events, expandable_segments=expandable_segments, limit_bytes=limit_bytes)
                needed_bytes, stays = squeezed.least_needed_bytes, not squeezed.ran_out_of_memory
                num_retries = squeezed.num_retries
    low = ends.low(needed_bytes)
    likely = (needed_bytes if stays else free.reserved_bytes) + overhead.context.likely
    high = ends.high(free.reserved_bytes)
    return Judgement(
        allocated_bytes=free.allocated_bytes,
        reserved_bytes=free.reserved_bytes,
        process=Band(low, likely, high),
        usable_bytes=usable_bytes,
        num_retries=num_retries,
        verdict=decide(low, likely, high, usable_bytes),
    )
