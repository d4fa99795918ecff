"""What to do when it does not fit: the cheapest settings that make it fit, and otherwise the smallest device."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from foretune.catalog.devices import Device
from foretune.choices.capabilities import objections
from foretune.choices.experiment import Experiment
from foretune.choices.method import Lora
from foretune.core.errors import UserError
from foretune.core.values.plan import Plan, Remedy, Verdict
from foretune.plan.knobs import Change, other_result, over_the_bus, same_result
from foretune.plan.overheads import usable_bytes
from foretune.plan.planning import Footprint, fits_on, judge_on, other_footprint
from foretune.plan.quick import quick_peak_bytes
from foretune.plan.sizing import StepSize
from foretune.plan.traces import flops_per_sample, is_at_hand
from foretune.plan.verdict import Ends

# A set that is looked at in full costs about half a second.
_MOST_LOOKED_AT = 3
_NUM_SHOWN = 3
# What a cache that does not fit depends on; nothing else mends it.
_CURES = {
    "caching text": {"quantize.text_encoders", "train.precision"},
    "caching latents": {"data.resolution"},
}


def with_remedies(plan: Plan, found: Footprint, device: Device, candidates: Sequence[Device]) -> Plan:
    """The plan with what would make it fit. `candidates` are the devices among which the smallest is sought."""
    if plan.verdict == "fits":
        return plan
    remedies = tuple(_remedies(plan, found, device))
    fitting = any(remedy.verdict == "fits" and not remedy.changes_the_result for remedy in remedies)
    smallest = None if fitting else smallest_device(found, candidates)
    return plan.model_copy(update={"remedies": remedies, "smallest_device": smallest})


def smallest_device(found: Footprint, candidates: Sequence[Device]) -> str | None:
    """The device with the least memory on which it fits as it is."""
    ordered = sorted(candidates, key=usable_bytes)
    return next((device.name for device in ordered if fits_on(found, device)), None)


def _remedies(plan: Plan, found: Footprint, device: Device) -> Iterator[Remedy]:
    """First what leaves the result as it is, the cheapest set that fits; then what changes it, the mildest first.

    Of the first, what only computes more comes before what moves more between host and device.
    """
    trial = _Trial(plan, found, device)
    same = sorted(same_result(found), key=trial.cost)
    # Further changes are tried on top of all that saves memory.
    saving = same[-1].settings
    # Only where the host has another memory is anything saved by going there.
    moving = [] if device.kind in ("cpu", "mps") else list(over_the_bus(found, saving))
    best = trial.first_that_fits(same) or trial.first_that_fits(trial.likely_first(moving))
    if best is not None:
        yield best
        return
    most_moving = [change.settings for change in (*[c for c in moving if c.keeps_samples][-1:], *moving[-1:])]
    others = list(other_result(found, trial.lacking_bytes))
    shown: list[Remedy] = []
    for change in others:
        if any(remedy.settings.items() <= change.words().items() for remedy in shown):
            continue  # less is enough
        # Alone, with all that computes more, and with all that moves more.
        on_top = [replace(change, settings={**below, **change.settings}) for below in ({}, saving, *most_moving)]
        remedy = trial.first_that_fits(on_top)
        if remedy is not None:
            yield remedy
            shown.append(remedy)
        if len(shown) >= _NUM_SHOWN:
            return
    if not shown and plan.verdict == "does not fit":
        nearest = trial.nearest([*same, *moving, *others])
        if nearest is not None:
            yield nearest


class _Trial:
    """Tries settings for one device, the quick way first."""

    def __init__(self, plan: Plan, found: Footprint, device: Device) -> None:
        self._plan, self._found, self._device = plan, found, device
        self._numerics = found.numerics
        self._flops = self._flops_of(found.experiment)
        self._ends = Ends(found.overhead_on(device), found.error_share)
        self._usable_bytes = usable_bytes(device)
        self._needed_cures = [_CURES[name] for name, _ in found.streams if name in _CURES and not self._fits(name)]

    def _fits(self, stretch: str) -> bool:
        found = self._found
        events = dict(found.streams)[stretch]
        held = found.replays.free(stretch, events, found.overhead_on(self._device), expandable_segments=False)
        return self._ends.high(held.reserved_bytes) <= self._usable_bytes

    @property
    def lacking_bytes(self) -> int:
        """How much less it would have to need."""
        return self._plan.process_high_bytes - self._usable_bytes

    def cost(self, change: Change) -> tuple[float, int]:
        """More computation first, then how much has to be set."""
        return (round(self._extra_flops(change.applied(self._found.experiment)), 3), len(change.words()))

    def first_that_fits(self, changes: Iterable[Change]) -> Remedy | None:
        """The first that fits; a few are looked at in full, those that may fit by the quick answer."""
        hopeful = (change for change in changes if self._least_bytes(change)[1] <= self._usable_bytes)
        tried = (self._tried(change) for change in islice(hopeful, _MOST_LOOKED_AT))
        return next((remedy for remedy in tried if remedy is not None), None)

    def likely_first(self, changes: Iterable[Change]) -> list[Change]:
        """In their order, but those last that fit only if the allocator holds less beyond tensors than it does now."""
        share = self._plan.reserved_bytes / self._plan.allocated_bytes

        def is_unlikely(change: Change) -> bool:
            peak_bytes = self._peak_bytes(change)
            return not math.isfinite(peak_bytes) or self._ends.high(round(peak_bytes * share)) > self._usable_bytes

        return sorted(changes, key=is_unlikely)

    def nearest(self, changes: Iterable[Change]) -> Remedy | None:
        """What brings it nearest to fitting, if that is more than nothing: by its tensors, without a replay."""
        low_bytes, change = min(((self._least_bytes(c)[0], c) for c in changes), key=lambda pair: pair[0])
        found = self._changed(change) if low_bytes <= self._usable_bytes else None
        if found is None or self._ends.low(found.worst.memory.device_bytes) > self._usable_bytes:
            return None
        saves_bytes = self._found.worst.memory.device_bytes - found.worst.memory.device_bytes
        return self._remedy(change, found, saves_bytes, "tight")

    def _least_bytes(self, change: Change) -> tuple[float, float]:
        """The least that the ends of the band can be, by the step's peak alone; no end where it cannot be tried."""
        peak_bytes = self._peak_bytes(change)
        if not math.isfinite(peak_bytes):
            return (math.inf, math.inf)
        return self._ends.least_process_bytes(peak_bytes)

    def _peak_bytes(self, change: Change) -> float:
        """The near answer for the step; infinite where it cannot be tried."""
        found, experiment = self._found, change.applied(self._found.experiment)
        size = self._size(experiment, change)
        if not self._is_possible(change, experiment, size):
            return math.inf
        try:
            return quick_peak_bytes(found.traces, experiment, size, found.subject.geometry, self._numerics)
        except UserError:
            return math.inf

    def _is_possible(self, change: Change, experiment: Experiment, size: StepSize) -> bool:
        """Whether it goes together with all else, and is known without a recording that nobody asked for."""
        found = self._found
        if not all(cures.intersection(change.settings) for cures in self._needed_cures):
            return False
        if change.is_other_form and not is_at_hand(
            found.traces, experiment, size, found.subject.geometry, self._numerics
        ):
            return False
        against = objections(experiment, found.subject.row.family or "", distilled=None, only_planned=True)
        return all(objection.severity != "refused" for objection in against)

    def _tried(self, change: Change) -> Remedy | None:
        """None where it does not fit."""
        found = self._changed(change)
        if found is None or not fits_on(found, self._device, expandable_segments=change.expandable):
            return None
        judged = judge_on(found, self._device, expandable_segments=change.expandable)
        saves_bytes = self._plan.process_bytes - judged.process.likely
        return self._remedy(change, found, saves_bytes, judged.verdict)

    def _changed(self, change: Change) -> Footprint | None:
        if not change.settings:
            return self._found
        experiment = change.applied(self._found.experiment)
        try:
            return other_footprint(self._found, experiment, self._size(experiment, change))
        except UserError:
            return None

    def _remedy(self, change: Change, changed: Footprint, saves_bytes: int, verdict: Verdict) -> Remedy:
        return Remedy(
            settings=change.words(),
            saves_bytes=saves_bytes,
            extra_flops_share=round(self._extra_flops(changed.experiment), 4),
            moves_bytes=changed.moved.total_bytes - self._found.moved.total_bytes,
            changes_the_result=change.changes_the_result,
            verdict=verdict,
        )

    def _size(self, experiment: Experiment, change: Change) -> StepSize:
        size = replace(self._found.size, batch_size=experiment.train.batch_size)
        if isinstance(experiment.method, Lora):
            size = replace(size, rank=experiment.method.rank)
        resolution = change.settings.get("data.resolution")
        multiple_px = self._found.subject.geometry.size_multiple_px
        return size if resolution is None else _scaled(size, resolution, multiple_px)

    def _extra_flops(self, experiment: Experiment) -> float:
        return self._flops_of(experiment) / self._flops - 1 if self._flops else 0.0

    def _flops_of(self, experiment: Experiment) -> float:
        found = self._found
        size = replace(found.size, batch_size=experiment.train.batch_size)
        try:
            return flops_per_sample(found.traces, experiment, size, found.subject.geometry, self._numerics)
        except UserError:
            return 0.0


def _scaled(size: StepSize, resolution_px: int, multiple_px: int) -> StepSize:
    """The same shape with another shorter side, as `sizing.size_of` would make it."""
    scale = resolution_px / min(size.height_px, size.width_px)
    height_px, width_px = (round(side * scale / multiple_px) * multiple_px for side in (size.height_px, size.width_px))
    return replace(size, height_px=height_px, width_px=width_px)
