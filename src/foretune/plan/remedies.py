"""What to do when it does not fit: the cheapest settings that make it fit, and otherwise the smallest device."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from foretune.catalog.devices import Device
from foretune.choices.experiment import Experiment
from foretune.choices.method import Lora
from foretune.core.values.plan import Plan, Remedy, Verdict
from foretune.plan.overheads import usable_bytes
from foretune.plan.planning import Footprint, fits_on, judge_on, other_footprint
from foretune.plan.quick import quick_peak_bytes
from foretune.plan.sizing import StepSize
from foretune.plan.traces import NotTraced, flops_per_sample
from foretune.plan.verdict import Ends

EXPANDABLE = "PYTORCH_ALLOC_CONF"
_EXPANDABLE_VALUE = "expandable_segments:True"
_SHARES = (0.25, 0.5, 0.75, 1.0)
# A set that is looked at in full costs about half a second.
_MOST_LOOKED_AT = 3
_NUM_SHOWN = 3
_OF_THE_ADAPTER = ("trained weights", "gradients", "optimizer state", "moving average", "cast weights")
_NO_SAMPLES = {"validate.prompts": ()}


@dataclass(frozen=True)
class _Change:
    """Settings to try, and what they cost."""

    settings: Mapping[str, Any]
    expandable: bool = False
    changes_the_result: bool = False

    def applied(self, experiment: Experiment) -> Experiment:
        data = experiment.to_mapping()
        for key, value in self.settings.items():
            section, name = key.split(".")
            if name == "kind":
                data[section] = {"kind": value}
            else:
                data[section][name] = value
        return Experiment.from_mapping(data)

    def words(self) -> dict[str, str]:
        said = {key: _text(value) for key, value in self.settings.items()}
        return {**said, **({EXPANDABLE: _EXPANDABLE_VALUE} if self.expandable else {})}


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
    """First what leaves the result as it is, the cheapest set that fits; then what changes it, the mildest first."""
    trial = _Trial(plan, found, device)
    same = sorted(_same_result(found), key=trial.cost)
    best = trial.first_that_fits(same)
    if best is not None:
        yield best
        return
    # Nothing fits that leaves the result alone: further changes are tried alone, and on top of all that saves memory.
    saving = same[-1].settings
    shown = 0
    for change in _other_result(found, trial.lacking_bytes):
        both = replace(change, settings={**saving, **change.settings})
        remedy = trial.first_that_fits([change, both])
        if remedy is not None:
            yield remedy
            shown += 1
        if shown >= _NUM_SHOWN:
            return
    if not shown and plan.verdict == "does not fit":
        nearest = trial.nearest([*same, *_other_result(found, trial.lacking_bytes)])
        if nearest is not None:
            yield nearest


class _Trial:
    """Tries settings for one device, the quick way first."""

    def __init__(self, plan: Plan, found: Footprint, device: Device) -> None:
        self._plan, self._found, self._device = plan, found, device
        self._numerics = found.numerics
        self._flops = self._flops_of(found.experiment)
        self._ends, self._usable_bytes = Ends(found.overhead_on(device)), usable_bytes(device)

    @property
    def lacking_bytes(self) -> int:
        """How much less it would have to need."""
        return self._plan.process_high_bytes - self._usable_bytes

    def cost(self, change: _Change) -> tuple[float, int]:
        """More computation first, then how much has to be set."""
        return (round(self._extra_flops(change.applied(self._found.experiment)), 3), len(change.words()))

    def first_that_fits(self, changes: Iterable[_Change]) -> Remedy | None:
        """The first that fits; a few are looked at in full, those that may fit by the quick answer."""
        hopeful = (change for change in changes if self._least_bytes(change)[1] <= self._usable_bytes)
        tried = (self._tried(change) for change in islice(hopeful, _MOST_LOOKED_AT))
        return next((remedy for remedy in tried if remedy is not None and remedy.verdict == "fits"), None)

    def nearest(self, changes: Iterable[_Change]) -> Remedy | None:
        """What brings it nearest to fitting, if that is more than nothing: by its tensors, without a replay."""
        low_bytes, change = min(((self._least_bytes(c)[0], c) for c in changes), key=lambda pair: pair[0])
        found = self._changed(change) if low_bytes <= self._usable_bytes else None
        if found is None or self._ends.low(found.worst.memory.device_bytes) > self._usable_bytes:
            return None
        saves_bytes = self._found.worst.memory.device_bytes - found.worst.memory.device_bytes
        return self._remedy(change, found.experiment, saves_bytes, "tight")

    def _least_bytes(self, change: _Change) -> tuple[float, float]:
        """The least that the ends of the band can be, by the step's peak alone."""
        found, experiment = self._found, change.applied(self._found.experiment)
        size = self._size(experiment, change)
        try:
            peak_bytes = quick_peak_bytes(found.traces, experiment, size, found.subject.geometry, self._numerics)
            return self._ends.least_process_bytes(peak_bytes)
        except NotTraced:
            return (math.inf, math.inf)

    def _tried(self, change: _Change) -> Remedy | None:
        found = self._changed(change)
        if found is None:
            return None
        judged = judge_on(found, self._device, expandable_segments=change.expandable)
        saves_bytes = self._plan.process_bytes - judged.process.likely
        return self._remedy(change, found.experiment, saves_bytes, judged.verdict)

    def _changed(self, change: _Change) -> Footprint | None:
        if not change.settings:
            return self._found
        experiment = change.applied(self._found.experiment)
        try:
            return other_footprint(self._found, experiment, self._size(experiment, change))
        except NotTraced:
            return None

    def _remedy(self, change: _Change, experiment: Experiment, saves_bytes: int, verdict: Verdict) -> Remedy:
        return Remedy(
            settings=change.words(),
            saves_bytes=saves_bytes,
            extra_flops_share=round(self._extra_flops(experiment), 4),
            changes_the_result=change.changes_the_result,
            verdict=verdict,
        )

    def _size(self, experiment: Experiment, change: _Change) -> StepSize:
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
        except NotTraced:
            return 0.0


def _same_result(found: Footprint) -> Iterator[_Change]:
    """All ways to the same result: caches, the allocator, smaller passes, blocks computed again, no samples."""
    experiment = found.experiment
    # Samples are given up only where they are what needs the most.
    beside: list[dict[str, Any]] = [{}]
    if found.worst.name == "validation" and experiment.validation.prompts:
        beside = [_NO_SAMPLES]
    caches = {
        f"levers.{name}": True for name in ("cache_latents", "cache_text") if not getattr(experiment.levers, name)
    }
    share = experiment.levers.gradient_checkpointing
    splits = [dict[str, Any]()]
    batch, accumulation = experiment.train.batch_size, experiment.train.gradient_accumulation
    while batch % 2 == 0:
        batch, accumulation = batch // 2, accumulation * 2
        splits.append({"train.batch_size": batch, "train.gradient_accumulation": accumulation})
    shares = [dict[str, Any](), *({"levers.gradient_checkpointing": s} for s in _SHARES if s > share)]
    for split, more, expandable, extra in product(splits, shares, (False, True), beside):
        settings = {**caches, **split, **more, **extra}
        if settings or expandable:
            yield _Change(settings, expandable=expandable)


def _other_result(found: Footprint, lacking_bytes: int) -> Iterator[_Change]:
    """What makes another model, the mildest first. A smaller rank saves no more than the adapter has."""
    experiment, size = found.experiment, found.size
    if experiment.train.ema is not None:
        yield _Change({"train.ema": None}, changes_the_result=True)
    if experiment.method.kind == "full":
        if experiment.train.weights == "fp32" and experiment.train.precision == "bf16":
            settings = {"train.weights": "bf16", "optimizer.compensation": "kahan"}
            yield _Change(settings, changes_the_result=True)
        yield _Change(
            {"method.kind": "lora", "train.weights": "fp32", "optimizer.compensation": "none"}, changes_the_result=True
        )
    elif isinstance(experiment.method, Lora):
        rank = experiment.method.rank
        parts = found.worst.memory.device_bytes_by_part
        is_enough = sum(parts.get(part, 0) for part in _OF_THE_ADAPTER) > lacking_bytes
        while is_enough and rank > 4:  # noqa: PLR2004 - fewer are hardly worth an adapter
            rank //= 2
            yield _Change({"method.rank": rank}, changes_the_result=True)
    side_px = min(size.height_px, size.width_px)
    for share in (0.75, 0.5):
        smaller_px = int(side_px * share) // 64 * 64
        if smaller_px:
            yield _Change({"data.resolution": smaller_px}, changes_the_result=True)
    if experiment.train.precision == "fp32":
        yield _Change({"train.precision": "bf16"}, changes_the_result=True)


def _scaled(size: StepSize, resolution_px: int, multiple_px: int) -> StepSize:
    """The same shape with another shorter side, as `sizing.size_of` would make it."""
    scale = resolution_px / min(size.height_px, size.width_px)
    height_px, width_px = (round(side * scale / multiple_px) * multiple_px for side in (size.height_px, size.width_px))
    return replace(size, height_px=height_px, width_px=width_px)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
