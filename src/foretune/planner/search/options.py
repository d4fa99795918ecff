"""What a search chooses from: settings with all that does not depend on the device, and settings on a device."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from foretune.catalog.devices import Device
from foretune.choices.capabilities import objections
from foretune.choices.experiment import Experiment
from foretune.choices.objections.hardware import hardware_objections
from foretune.core.errors import UserError
from foretune.planner.block_events import Sizes
from foretune.planner.knobs import SettingChange
from foretune.planner.overheads import usable_bytes
from foretune.planner.planning import Footprint, fits_on, judge_on, other_footprint
from foretune.planner.quick import quick_peak_bytes
from foretune.planner.search.space import Space
from foretune.planner.sizing import StepSize
from foretune.planner.swapping import copied_bytes
from foretune.planner.timing.forecast import checked_seconds, peak_flops_per_s, unknown_speed
from foretune.planner.timing.interconnect import interconnect_of
from foretune.planner.timing.job import BesideSteps, JobTotals, JobWork, caching_seconds, job_totals, validation_seconds
from foretune.planner.timing.parallel_time import ParallelSeconds, planned_parallel_seconds
from foretune.planner.timing.passes import live_encoders
from foretune.planner.timing.speed import DeviceSpeed, NotKnown
from foretune.planner.timing.spot_job import num_machines, spot_totals
from foretune.planner.timing.stated_links import AS_USUAL
from foretune.planner.timing.step_time import PlannedStep, TimedStep, planned_step
from foretune.planner.timing.terms import Terms
from foretune.planner.traces import Mixed, flops_per_sample, is_at_hand, mixed_step, variant_of
from foretune.planner.transfers import Moved
from foretune.planner.verdict import Ends

_QUICK_MARGIN = 0.04
"""A quick estimate that misses by more of the usable memory is taken for an exact one."""


@dataclass(frozen=True, eq=False)
class SearchSetting:
    """One combination of settings, whatever it runs on."""

    change: SettingChange
    experiment: Experiment
    size: StepSize
    base: Footprint
    num_samples: int
    """Of each device in one optimizer step."""
    _with_more: dict[str, "SearchSetting"] = field(default_factory=dict)
    """The same with what the caches of some devices need."""

    @property
    def num_devices(self) -> int:
        return self.experiment.parallel.devices

    @cached_property
    def typed(self) -> str:
        """What differs from the request, as it is typed."""
        words = self.change.without_idle(self.base.experiment).words()
        return " ".join(f"{key}={value}" for key, value in words.items())

    @cached_property
    def is_for_apple(self) -> bool:
        """Whether an Apple GPU can do it, as far as the number of devices decides."""
        family = self.base.subject.row.family_facts.name
        against = objections(self.experiment, family, distilled=None, only_planned=True, device_type="mps")
        return all(objection.severity != "refused" for objection in against)

    @cached_property
    def quick_bytes(self) -> float:
        """Estimated peak of live bytes of a step; infinite if it has no trace."""
        try:
            return quick_peak_bytes(
                self.base.traces, self.experiment, self.size, self.base.subject.geometry, self.base.numerics
            )
        except UserError:
            return float("inf")

    @cached_property
    def flops(self) -> float:
        """Of a step, with what is recomputed."""
        per_sample = flops_per_sample(
            self.base.traces, self.experiment, self.size, self.base.subject.geometry, self.base.numerics
        )
        return per_sample * self.num_samples

    @cached_property
    def planned(self) -> PlannedStep:
        base = self.base
        step = TimedStep(
            experiment=self.experiment,
            size=self.size,
            geometry=base.subject.geometry,
            moved=self._moved(),
            numerics=base.numerics,
            encoders=live_encoders(replace(base.run, experiment=self.experiment, sizes=self._sizes)),
        )
        return planned_step(step, base.traces, self._mixed)

    @property
    def _sizes(self) -> Sizes:
        return self.size.in_trace(self.base.subject.geometry)

    @cached_property
    def _mixed(self) -> Mixed:
        base = self.base
        return mixed_step(base.traces, self.experiment, self.size, base.subject.geometry, base.numerics)

    def _moved(self) -> Moved:
        """Returns the traffic of a step; of swapped blocks alone it is known without the events of a step."""
        base, levers = self.base, self.experiment.levers
        if levers.activation_offload or levers.optimizer_offload or levers.ema_offload:
            return self.footprint.moved
        swapped = variant_of(self.experiment, base.subject.geometry).swapped
        in_a_pass = copied_bytes(self._mixed.kept, self._sizes, swapped)
        in_a_step = in_a_pass * self.experiment.train.gradient_accumulation
        return Moved(to_device_bytes=in_a_step, swapped_bytes=in_a_step)

    @property
    def footprint(self) -> Footprint:
        return other_footprint(self.base, self.experiment, self.size)

    def with_more(self, more: Mapping[str, Any]) -> "SearchSetting":
        """Returns the same step with settings that do not belong to it."""
        key = repr(sorted(more.items()))
        if key not in self._with_more:
            change = SettingChange("other", {**self.change.settings, **more})
            experiment = change.applied(self.base.experiment)
            self._with_more[key] = replace(self, change=change, experiment=experiment, _with_more={})
        return self._with_more[key]


def legal_settings(base: Footprint, space: Space) -> Iterator[SearchSetting]:
    """Yields the settings of a space that go together and need no recording."""
    family = base.subject.row.family_facts.name
    for change in space.changes():
        try:
            experiment = change.applied(base.experiment)
        except (UserError, ValueError):
            continue
        size = replace(base.size, batch_size=experiment.train.batch_size)
        against = objections(experiment, family, distilled=None, only_planned=True)
        if any(objection.severity == "refused" for objection in against):
            continue
        if is_at_hand(base.traces, experiment, size, base.subject.geometry, base.numerics):
            samples = experiment.train.batch_size * experiment.train.gradient_accumulation
            yield SearchSetting(change, experiment, size, base, samples)


@dataclass(frozen=True, eq=False)
class SearchPlace:
    """A device on which settings are tried, with its speed and price."""

    base: Footprint
    device: Device
    speed: DeviceSpeed
    terms: Terms
    price_usd_per_hour: float | None
    may_choose_saves: bool
    """Whether checkpoints on spot instances are as often as costs least."""
    usable_bytes: int
    ends: Ends
    reserved_share: float
    """Reserved over allocated memory of the experiment as it was asked for."""
    needed: Mapping[str, Any]
    """Settings without which the caches do not fit."""
    _has_dtypes: dict[tuple[str, ...], bool] = field(default_factory=dict)

    def has_dtypes_of(self, experiment: Experiment) -> bool:
        """Whether nothing speaks against these dtypes on this device; the rest of an experiment decides nothing."""
        key = (experiment.quantize.denoiser, experiment.train.precision, experiment.train.weight_dtype)
        if key not in self._has_dtypes:
            self._has_dtypes[key] = not any(hardware_objections(experiment, self.device))
        return self._has_dtypes[key]

    @cached_property
    def job(self) -> JobWork:
        """What every setting does there besides its steps."""
        return self.base.job if not self.needed else self._changed.job

    @cached_property
    def caching_s(self) -> float | None:
        """Of every setting, on one device; raises `NotKnown`."""
        job = replace(self.job, num_devices=1)
        return caching_seconds(job, self.speed, self.base.traces.work_times) if job.is_caching_known else None

    @cached_property
    def least_caching_s(self) -> float:
        """A lower bound of the same; does not raise."""
        try:
            return self.caching_s or 0.0
        except NotKnown:
            return 0.0

    @property
    def _changed(self) -> Footprint:
        """The request with what the caches need."""
        experiment = SettingChange("other", dict(self.needed)).applied(self.base.experiment)
        return other_footprint(self.base, experiment, self.base.size)


@dataclass(frozen=True, eq=False)
class Option:
    """Settings on a device."""

    setting: SearchSetting
    place: SearchPlace

    @cached_property
    def key(self) -> tuple[str, str]:
        """Orders what is equally good: by device, then by settings as they are typed."""
        return self.place.device.name, self.changed.typed

    @cached_property
    def changed(self) -> SearchSetting:
        return self.setting.with_more(self.place.needed) if self.place.needed else self.setting

    @property
    def may_fit(self) -> bool:
        """Whether the quick estimate leaves it open."""
        place = self.place
        high = place.ends.high(round(min(self.setting.quick_bytes, 1e18) * place.reserved_share))
        return high <= place.usable_bytes * (1 + _QUICK_MARGIN)

    @property
    def is_able(self) -> bool:
        if self.setting.num_devices > 1 and self.place.device.kind == "mps" and not self.setting.is_for_apple:
            return False
        return self.place.has_dtypes_of(self.setting.experiment)

    @cached_property
    def fits(self) -> bool:
        """Whether the verdict is `fits`: replays the whole run."""
        return fits_on(self.changed.footprint, self.place.device)

    @property
    def least(self) -> JobTotals:
        """A lower bound of time and price: products at the peak of the device, and nothing to wait for."""
        peak = peak_flops_per_s(self.setting.experiment, self.place.device)
        least_s = 0.0 if peak is None else self.setting.flops / peak
        caching_s = self.place.least_caching_s / self.setting.num_devices
        return self._on_spot(
            self._totals(least_s, self.setting.flops, BesideSteps(caching_s=caching_s, validation_s=0.0))
        )

    @cached_property
    def seconds(self) -> ParallelSeconds:
        """Of one step; raises `NotKnown`."""
        setting, place = self.setting, self.place
        unknown_speed(setting.experiment)
        links = place.terms.links if setting.num_devices > 1 else AS_USUAL
        found = planned_parallel_seconds(
            setting.planned, place.speed, setting.base.traces.work_times, interconnect_of(place.device, links)
        )
        checked_seconds(found.alone, setting.experiment, place.device)
        return found

    @cached_property
    def totals(self) -> JobTotals:
        """Time and price of the whole job; raises `NotKnown`."""
        return self._on_spot(self.undisturbed)

    @property
    def undisturbed(self) -> JobTotals:
        """The totals if nothing is interrupted."""
        found, job, setting, place = self.seconds, self.job, self.setting, self.place
        caching_s = None if place.caching_s is None else place.caching_s / setting.num_devices
        once_s = validation_seconds(job, setting.planned, place.speed, setting.base.traces.work_times)
        validation_s = None if job.num_validations is None else job.num_validations * once_s
        beside = BesideSteps(caching_s=caching_s, validation_s=validation_s)
        return self._totals(found.step_s, found.alone.hardware_flops, beside)

    @cached_property
    def job(self) -> JobWork:
        """What the devices of this option do."""
        return replace(self.place.job, num_devices=self.setting.num_devices)

    @property
    def num_machines(self) -> int:
        return num_machines(self.job, self.place.device, self.place.terms)

    def _totals(self, step_s: float, hardware_flops: float, beside: BesideSteps) -> JobTotals:
        place = self.place
        return job_totals(self.job, place.device, place.price_usd_per_hour, step_s, hardware_flops, beside)

    def _on_spot(self, found: JobTotals) -> JobTotals:
        place = self.place
        if place.terms.spot is None:
            return found
        return spot_totals(self.job, place.device, place.terms, found, may_choose=place.may_choose_saves)


def place_on(
    base: Footprint, device: Device, terms: Terms, needed: Mapping[str, Any], *, may_choose_saves: bool
) -> SearchPlace:
    """Raises `NotKnown` if the device's speed is not known, or its price on spot."""
    price = terms.price_of(device).usd if terms.spot is None else terms.spot_price_of(device)
    if terms.spot is not None and price is None:
        raise NotKnown("a spot price: add --price DEVICE=USD")
    return SearchPlace(
        base=base,
        device=device,
        speed=terms.speeds(device),
        terms=terms,
        price_usd_per_hour=price,
        may_choose_saves=may_choose_saves,
        usable_bytes=usable_bytes(device),
        ends=Ends(base.overhead_on(device), base.error_share),
        reserved_share=reserved_share(base, device),
        needed=needed,
    )


def reserved_share(base: Footprint, device: Device) -> float:
    judged = judge_on(base, device)
    return judged.reserved_bytes / max(1, judged.allocated_bytes)
