"""Tries settings on one device: a quick estimate of many, an exact replay of few."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from foretune.catalog.devices import Device
from foretune.choices.capabilities import objections
from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter, rank_of
from foretune.choices.picture_size import sides_px
from foretune.core.errors import UserError
from foretune.core.values.plan import HostMemory, Plan, Remedy
from foretune.core.values.plan_time import StepTime
from foretune.planner.composing.updates import state_bytes_per_weight
from foretune.planner.encoders import BYTES_PER_WEIGHT
from foretune.planner.host_memory import HostBudget, host_memory_of
from foretune.planner.knobs import SettingChange
from foretune.planner.overheads import usable_bytes
from foretune.planner.planning import Footprint, forecast_on, judge_on, other_footprint
from foretune.planner.quantized import dense_over_bits
from foretune.planner.quick import quick_peak_bytes
from foretune.planner.sharding import num_shards
from foretune.planner.sizing import StepSize
from foretune.planner.timing.terms import PUBLISHED, Terms
from foretune.planner.traces import flops_per_sample, is_at_hand
from foretune.planner.transfers import transfers_on
from foretune.planner.verdict import Ends

_QUICK_MARGIN = 0.04
"""Settings whose quick estimate misses by more of the usable memory are not looked at."""
# An exact look takes about a third of a second.
_MOST_LOOKS = 2
_MOST_LOOKS_FOR_A_NUMBER = 4


@dataclass(frozen=True)
class Look:
    """Settings whose run was replayed in full, and their distance from the device's limit."""

    change: SettingChange
    footprint: Footprint
    spare_bytes: int
    """Usable memory minus the high end of the estimate; negative if the verdict is not `fits`."""
    has_host_memory: bool = True
    """False if the host is known to have too little."""

    @property
    def fits(self) -> bool:
        return self.spare_bytes >= 0 and self.has_host_memory


class Trial:
    """Tries settings for one device."""

    def __init__(
        self, plan: Plan, found: Footprint, device: Device, host: HostBudget | None = None, terms: Terms = PUBLISHED
    ) -> None:
        """`host` is the available host memory, if known."""
        self._terms = terms
        self.plan, self.found, self.device, self.host = plan, found, device, host
        self.usable_bytes = usable_bytes(device)
        self._ends = Ends(found.overhead_on(device), found.error_share)
        self._flops = self._flops_of(found.experiment)
        # The ratio of reserved to allocated memory is assumed to stay the same until an exact look shows otherwise.
        self._reserved_share = plan.reserved_bytes / max(1, plan.allocated_bytes)
        self._looks: dict[tuple[tuple[str, str], ...], Look | None] = {}

    def quick_spare_bytes(self, change: SettingChange) -> float:
        """Estimates the spare memory; minus infinity if the settings cannot be tried."""
        found, experiment = self.found, change.applied(self.found.experiment)
        size = self._size(experiment, change)
        # The size of the weights alone rules many out, without a trace.
        if self._least_bytes(experiment) > self.usable_bytes or not self._is_possible(experiment, size):
            return -math.inf
        try:
            peak_bytes = quick_peak_bytes(
                found.traces, experiment, size, found.subject.geometry, found.numerics, habits=found.habits
            )
        except UserError:
            return -math.inf
        return self.usable_bytes - self._ends.high(round(peak_bytes * self._reserved_share))

    def look(self, change: SettingChange) -> Look | None:
        """Returns the exact spare memory; None if the settings cannot be tried."""
        change = change.without_idle(self.found.experiment)
        key = tuple(sorted(change.words().items()))
        if key not in self._looks:
            self._looks[key] = self._look(change)
        return self._looks[key]

    def first_that_fits(self, changes: Iterable[SettingChange]) -> Look | None:
        """Returns the first that fits, in order. Skips those that are far off, and gives up after a few near misses."""
        num_looks = 0
        margin_bytes = self.usable_bytes * _QUICK_MARGIN
        for change in changes:
            if self.quick_spare_bytes(change) < -margin_bytes:
                continue
            look = self.look(change)
            if look is not None and look.fits:
                return look
            num_looks += 1
            if num_looks >= _MOST_LOOKS:
                return None
        return None

    def first_that_fits_without_desktop(self, changes: Iterable[SettingChange]) -> Look | None:
        """Returns the first that is tight only because a desktop and its programs may use the card."""
        desktop_bytes = self.found.overhead_on(self.device).display.high
        for change in changes if desktop_bytes else ():
            if self.quick_spare_bytes(change) + desktop_bytes < -self.usable_bytes * _QUICK_MARGIN:
                continue
            look = self.look(change)
            if look is not None and -desktop_bytes <= look.spare_bytes < 0 and self._has_host_memory(look.footprint):
                return look
        return None

    def estimated_fewest(self, make: Callable[[int], SettingChange], most: int) -> int | None:
        """Estimates what `fewest_that_fits` would find, without an exact look."""
        if most < 1 or self.quick_spare_bytes(make(most)) < -self.usable_bytes * _QUICK_MARGIN:
            return None
        error_bytes = self.found.quick_errors.get(tuple(sorted(make(0).words().items())), 0.0)
        numbers = range(1, most)
        return 1 + bisect_left(numbers, 0.0, key=lambda number: self.quick_spare_bytes(make(number)) - error_bytes)

    def fewest_that_fits(self, make: Callable[[int], SettingChange], most: int) -> Look | None:
        """Returns the smallest number, up to `most`, that fits, for block swap: more swapped blocks take less memory.

        The quick estimate gives the saving of each, and an exact look its error: a few looks are enough.
        """
        if most < 1 or self.quick_spare_bytes(make(most)) < -self.usable_bytes * _QUICK_MARGIN:
            return None
        key, errors = tuple(sorted(make(0).words().items())), self.found.quick_errors
        too_few, enough = 0, most + 1
        best: Look | None = None
        for _ in range(_MOST_LOOKS_FOR_A_NUMBER):
            error_bytes = errors.get(key, 0.0)
            # Of the numbers that are not decided yet, the first that should fit.
            undecided = range(too_few + 1, enough)
            place = bisect_left(undecided, 0.0, key=lambda one: self.quick_spare_bytes(make(one)) - error_bytes)
            if best is not None and place == len(undecided):
                break
            number = undecided[min(place, len(undecided) - 1)]
            change = make(number)
            look = self.look(change)
            if look is None:
                return best
            estimated_bytes = self.quick_spare_bytes(change)
            if math.isfinite(estimated_bytes):
                errors[key] = estimated_bytes - look.spare_bytes
            if look.spare_bytes >= 0:
                # More blocks would only take more host memory.
                best, enough = (look if look.fits else best), number
            else:
                too_few = number
            if enough - too_few <= 1:
                break
        return best

    def remedy(self, look: Look) -> Remedy:
        """Returns the remedy for these settings."""
        change, changed = look.change, look.footprint
        judged = judge_on(changed, self.device, expandable_segments=change.expandable)
        transfers = transfers_on(changed.moved, self.device)
        time, after = self.plan.time, self._time_of(changed)
        slowdown_s = self._slowdown_s(after)
        host = self._host_of(changed) if self.host is not None or changed.moved.total_bytes else None
        return Remedy(
            kind=change.kind,
            settings=change.words(),
            process_bytes=judged.process.likely,
            saves_bytes=self.plan.process_bytes - judged.process.likely,
            extra_flops_share=round(self.extra_flops_share(change), 4),
            moves_bytes=changed.moved.total_bytes - self.found.moved.total_bytes,
            least_transfer_s=None if transfers is None else transfers.least_s,
            hidden_copy_share=None if after is None else after.hidden_copy_share,
            hidden_copy_s=None if after is None else after.hidden_copy_s * self._num_steps_of(after),
            slowdown_s=slowdown_s,
            slowdown_share=slowdown_s / time.step_s if slowdown_s is not None and time is not None else None,
            changes_the_result=change.changes_the_result,
            verdict=judged.verdict,
            host_bytes=None if host is None else host.likely_bytes,
            host_verdict=None if host is None else host.verdict,
        )

    def extra_flops_share(self, change: SettingChange) -> float:
        """Returns the additional computation per sample of the same size, as a share."""
        return self._flops_of(change.applied(self.found.experiment)) / self._flops - 1 if self._flops else 0.0

    def _time_of(self, changed: Footprint) -> StepTime | None:
        return None if self.plan.time is None else forecast_on(changed, self.device, self._terms).time

    def _slowdown_s(self, after: StepTime | None) -> float | None:
        """Returns how much longer the samples of one step of the plan take; None if a time is not known."""
        time = self.plan.time
        if time is None or after is None:
            return None
        return self._num_steps_of(after) * after.step_s - time.step_s

    def _num_steps_of(self, after: StepTime) -> float:
        """Returns how many changed steps see as many samples as one step of the plan."""
        time = self.plan.time
        assert time is not None, "a changed step has a time only if the plan has one"
        return time.samples_per_s * time.step_s / (after.samples_per_s * after.step_s)

    def fits_in(self, stretch: str, found: Footprint) -> bool:
        """Whether one stretch of a run (filling a cache, or the training) fits on its own."""
        events = dict(found.streams).get(stretch)
        if events is None:
            return True
        held = found.traces.replays.free(events, found.overhead_on(self.device), expandable_segments=False)
        return self._ends.high(held.reserved_bytes) <= self.usable_bytes

    def changed(self, change: SettingChange) -> Footprint | None:
        if not change.settings and change.num_frames is None:
            return self.found
        experiment = change.applied(self.found.experiment)
        try:
            return other_footprint(self.found, experiment, self._size(experiment, change))
        except UserError:
            return None

    def _look(self, change: SettingChange) -> Look | None:
        experiment = change.applied(self.found.experiment)
        if not self._is_possible(experiment, self._size(experiment, change)):
            return None
        found = self.changed(change)
        if found is None:
            return None
        overhead = found.overhead_on(self.device)
        ends = Ends(overhead, found.error_share)
        most_bytes = max(
            found.traces.replays.free(events, overhead, expandable_segments=change.expandable).reserved_bytes
            for _, events in found.streams
        )
        spare_bytes = self.usable_bytes - ends.high(most_bytes)
        # Counting the host's memory takes as long as a look at the device's: not where it decides nothing.
        return Look(change, found, spare_bytes, has_host_memory=spare_bytes < 0 or self._has_host_memory(found))

    def _has_host_memory(self, found: Footprint) -> bool:
        """Whether the host has enough memory, as far as it is known."""
        host = None if self.host is None else self._host_of(found)
        return host is None or host.verdict != "does not fit"

    def _host_of(self, found: Footprint) -> HostMemory | None:
        return host_memory_of(found.experiment, found.phases_that_must_fit, self.device, self.host)

    def _is_possible(self, experiment: Experiment, size: StepSize) -> bool:
        """Whether the settings are compatible with all others, and need no recording that nobody requested."""
        found = self.found
        if not is_at_hand(found.traces, experiment, size, found.subject.geometry, found.numerics, habits=found.habits):
            return False
        against = objections(experiment, found.subject.row.family_facts.name, distilled=None, only_planned=True)
        return all(objection.severity != "refused" for objection in against)

    def _least_bytes(self, experiment: Experiment) -> float:
        """Returns a lower bound: weights, optimizer states, and gradients if all of them exist at once."""
        num_params, levers = self.found.subject.row.num_params / num_shards(experiment.parallel), experiment.levers
        if experiment.method.kind == "full":
            per_weight = BYTES_PER_WEIGHT[experiment.train.weight_dtype]
            keeps_gradients = not (levers.fused_backward or levers.optimizer_offload)
            per_weight *= 2 if keeps_gradients else 1
            return num_params * (per_weight + state_bytes_per_weight(experiment))
        dense = BYTES_PER_WEIGHT[experiment.train.precision]
        stays = 1 - levers.block_swap / max(1, sum(self.found.subject.geometry.stacks))
        return num_params * dense / (dense_over_bits(experiment.quantize.denoiser, dense) or 1) * stays

    def _size(self, experiment: Experiment, change: SettingChange) -> StepSize:
        size = replace(self.found.size, batch_size=experiment.train.batch_size)
        if isinstance(experiment.method, Adapter):
            size = replace(size, rank=rank_of(experiment.method))
        if change.num_frames is not None:
            size = replace(size, num_frames=change.num_frames)
        resolution, geometry = change.settings.get("data.resolution"), self.found.subject.geometry
        if resolution is None:
            return size
        usual_px, is_video = (size.height_px, size.width_px), geometry.default_num_frames > 1
        # One number keeps the aspect ratio: smaller inputs are written as one only where that is so.
        height_px, width_px = sides_px(resolution, usual_px, geometry.size_multiple_px, is_video=is_video)
        return replace(size, height_px=height_px, width_px=width_px)

    def _flops_of(self, experiment: Experiment) -> float:
        found = self.found
        size = replace(found.size, batch_size=experiment.train.batch_size)
        try:
            return flops_per_sample(found.traces, experiment, size, found.subject.geometry, found.numerics)
        except UserError:
            return 0.0
