"""What a search chooses from: settings with all that does not depend on the device, and settings on a device."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
from foretune.planner.timing.job import BesideSteps, JobTotals, JobWork, caching_seconds, job_totals, validation_seconds
from foretune.planner.timing.passes import live_encoders
from foretune.planner.timing.speed import DeviceSpeed, NotKnown
from foretune.planner.timing.step_time import PlannedStep, StepSeconds, TimedStep, parts_of, planned_step
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
    job: JobWork
    num_samples: int
    """Of one device in one optimizer step."""

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
        change = SettingChange("other", {**self.change.settings, **more})
        return replace(self, change=change, experiment=change.applied(self.base.experiment))


def legal_settings(base: Footprint, space: Space) -> Iterator[SearchSetting]:
    """Yields the settings of a space that go together and need no recording."""
    jobs = base.job
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
            yield SearchSetting(change, experiment, size, base, jobs, samples)


@dataclass(frozen=True, eq=False)
class SearchPlace:
    """A device on which settings are tried, with its speed and price."""

    base: Footprint
    device: Device
    speed: DeviceSpeed
    price_usd_per_hour: float | None
    usable_bytes: int
    ends: Ends
    reserved_share: float
    """Reserved over allocated memory of the experiment as it was asked for."""
    needed: Mapping[str, Any]
    """Settings without which the caches do not fit."""

    @cached_property
    def job(self) -> JobWork:
        """What every setting does there besides its steps."""
        return self.base.job if not self.needed else self._changed.job

    @cached_property
    def caching_s(self) -> float | None:
        """Of every setting; raises `NotKnown`."""
        job = self.job
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
        words = self.changed.change.without_idle(self.setting.base.experiment).words()
        return self.place.device.name, " ".join(f"{key}={value}" for key, value in words.items())

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
        return not any(hardware_objections(self.setting.experiment, self.place.device))

    @cached_property
    def fits(self) -> bool:
        """Whether the verdict is `fits`: replays the whole run."""
        return fits_on(self.changed.footprint, self.place.device)

    @property
    def least(self) -> JobTotals:
        """A lower bound of time and price: products at the peak of the device, and nothing to wait for."""
        peak = peak_flops_per_s(self.setting.experiment, self.place.device)
        least_s = 0.0 if peak is None else self.setting.flops / peak
        return self._totals(
            least_s, self.setting.flops, BesideSteps(caching_s=self.place.least_caching_s, validation_s=0.0)
        )

    @cached_property
    def seconds(self) -> StepSeconds:
        """Of one step; raises `NotKnown`."""
        setting, place = self.setting, self.place
        unknown_speed(setting.experiment)
        if setting.experiment.parallel.devices > 1:
            raise NotKnown("the best settings of several devices: a search is for one. Set parallel.devices=1")
        parts = parts_of(setting.planned, place.speed, setting.base.traces.work_times)
        found = parts.seconds()
        return checked_seconds(found, setting.experiment, place.device)

    @cached_property
    def totals(self) -> JobTotals:
        """Time and price of the whole job; raises `NotKnown`."""
        found, place, setting = self.seconds, self.place, self.setting
        once_s = validation_seconds(place.job, setting.planned, place.speed, setting.base.traces.work_times)
        often = place.job.num_validations
        beside = BesideSteps(caching_s=place.caching_s, validation_s=None if often is None else often * once_s)
        return self._totals(found.step_s, found.hardware_flops, beside)

    def _totals(self, step_s: float, hardware_flops: float, beside: BesideSteps) -> JobTotals:
        place = self.place
        return job_totals(place.job, place.device, place.price_usd_per_hour, step_s, hardware_flops, beside)


def place_on(
    base: Footprint, device: Device, terms: Terms, reserved_share: float, needed: Mapping[str, Any]
) -> SearchPlace:
    """Raises `NotKnown` if the device's speed is not known."""
    return SearchPlace(
        base=base,
        device=device,
        speed=terms.speeds(device),
        price_usd_per_hour=terms.price_of(device).usd,
        usable_bytes=usable_bytes(device),
        ends=Ends(base.overhead_on(device), base.error_share),
        reserved_share=reserved_share,
        needed=needed,
    )


def reserved_share(base: Footprint, device: Device) -> float:
    judged = judge_on(base, device)
    return judged.reserved_bytes / max(1, judged.allocated_bytes)
