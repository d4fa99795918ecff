"""Published speeds on 8 to 1,024 devices, and what step times say of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from foretune import catalog
from foretune.backtests import words
from foretune.backtests.questions import LeftOut, Unfit
from foretune.backtests.scale_programs import Program, program_of, with_speed
from foretune.catalog import Measurement
from foretune.catalog.devices import Device
from foretune.choices.experiment import Experiment
from foretune.planner.sizing import StepSize
from foretune.planner.timing.constants import shipped_constants
from foretune.planner.timing.interconnect import Interconnect, interconnect_of
from foretune.planner.timing.parallel_time import ParallelSeconds, exchanged_step_seconds, links_of
from foretune.planner.timing.speed import DeviceSpeed
from foretune.planner.timing.step_time import TimedStep
from foretune.planner.timing.work_times import WorkTimes
from foretune.planner.traces import Traces
from foretune.planner.transfers import NOTHING_MOVED
from foretune.trace.shipped import geometries

_FEWEST_DEVICES = 8
_LEAST, _MOST = 0.05, 20.0
"""Constants outside of this are no constants."""
_HALVINGS = 25


@dataclass(frozen=True, kw_only=True)
class ScaleQuestion:
    """A published training on several devices with its speed."""

    row_id: str
    model: str
    device: Device
    num_devices: int
    program: Program
    submitter: str
    """Who published it: rows of one submitter are not independent."""
    step: TimedStep
    published: float
    """Samples a second of one device."""

    @property
    def interconnect(self) -> Interconnect:
        return interconnect_of(self.device)

    @property
    def machine_devices(self) -> int:
        usual = min(self.interconnect.domain_devices, _FEWEST_DEVICES)
        return min(self.num_devices, self.program.machine_devices.get(self.device.name, usual))


def is_of_scale(row: Measurement) -> bool:
    """Whether a row belongs to this backtest: a training of grade A on eight devices or more, with its speed."""
    has_speed = row.task == "train" and row.grade == "A" and row.samples_per_s_per_gpu is not None
    return has_speed and (row.num_gpus or 1) >= _FEWEST_DEVICES


def scale_question(row: Measurement) -> ScaleQuestion | LeftOut:
    """What a row asks, or why it cannot be asked. Decided without its speed."""
    try:
        return _question(row)
    except Unfit as why:
        return LeftOut(row_id=row.id, source=row.framework, reason=str(why))


def _question(row: Measurement) -> ScaleQuestion:
    if "MXFP8" in (row.precision or ""):
        raise Unfit("products in MXFP8, which no table has")
    if "TP" in (row.parallelism or ""):
        raise Unfit("tensor parallelism, which is not modelled")
    program = program_of(row.framework)
    if program is None:
        raise Unfit(f"another program ({row.framework})")
    model = words.model_named(row.model)
    device = program.devices.get(row.gpu) or words.device_named(row.gpu, row.gpu_mem_gb)
    if device is None:
        raise Unfit(f"the device {row.gpu} is not in the catalogue")
    if row.batch_size_per_gpu is None or row.samples_per_s_per_gpu is None or row.num_gpus is None:
        raise Unfit("the batch size is not stated")
    return ScaleQuestion(
        row_id=row.id,
        model=model,
        device=catalog.device(device),
        num_devices=row.num_gpus,
        program=program,
        submitter=submitter_of(row.source),
        step=_step(row, program, model),
        published=row.samples_per_s_per_gpu,
    )


def _step(row: Measurement, program: Program, model: str) -> TimedStep:
    assert row.batch_size_per_gpu is not None
    micro_batch = min(row.batch_size_per_gpu, program.max_micro_batch or row.batch_size_per_gpu)
    geometry = geometries()[model]
    resolution = words.resolution_in(row.resolution)
    train = {
        "steps": 1,
        "batch_size": micro_batch,
        "gradient_accumulation": row.batch_size_per_gpu // micro_batch,
        **program.experiment.get("train", {}),
    }
    asked = {"model": model, "method": {"kind": "full"}, "data": {"kind": "shapes"}, "train": train}
    levers = {"gradient_checkpointing": 0.0, "cache_latents": True, "cache_text": True}
    return TimedStep(
        experiment=Experiment.model_validate({**asked, "levers": levers}),
        size=StepSize(
            batch_size=micro_batch,
            height_px=resolution.height_px,
            width_px=resolution.width_px,
            num_frames=1,
            num_text_tokens=geometry.default_text_tokens,
            rank=1,
        ),
        geometry=geometry,
        moved=NOTHING_MOVED,
    )


def submitter_of(source: str) -> str:
    """The organisation of a source: of MLPerf's results, who submitted them."""
    parts = source.split(":")
    if parts[0] == "github" and "training_results" in parts[1]:
        return parts[2].split("/")[0]
    return parts[1] if parts[0] == "github" else source


@dataclass
class ScaleForecasts:
    """Predicts the rows. `speed_of` answers for a device."""

    traces: Traces
    speed_of: Callable[[Device], DeviceSpeed]
    _work_times: WorkTimes = field(default_factory=WorkTimes)
    _speeds: dict[tuple[str, str], DeviceSpeed] = field(default_factory=dict)
    _constants: dict[str, float] = field(default_factory=dict)

    def seconds(self, asked: ScaleQuestion, device_constant: float = 1.0) -> ParallelSeconds:
        """The step of a row; `device_constant` is the time of kernels beside that of the tables."""
        key = (asked.program.name, asked.device.name)
        if key not in self._speeds:
            self._speeds[key] = with_speed(asked.program, self.speed_of(asked.device))
        shards = asked.num_devices if asked.program.shares_all else asked.machine_devices
        links = links_of(asked.num_devices, shards, self._speeds[key], asked.interconnect)
        return exchanged_step_seconds(
            asked.step,
            self.traces,
            links,
            self._work_times,
            asked.program.exchange,
            shipped_constants().model_copy(update={"device": device_constant}),
            update_share=asked.program.state_widening / shards,
            gradient_widening=asked.program.gradient_widening,
        )

    def speed(self, asked: ScaleQuestion, device_constant: float = 1.0) -> float:
        """Samples a second of one device."""
        return self.seconds(asked, device_constant).samples_per_s / asked.num_devices

    def constant(self, asked: ScaleQuestion) -> float:
        """The constant with which the prediction of a row is its published speed."""
        if asked.row_id not in self._constants:
            low, high = _LEAST, _MOST
            for _ in range(_HALVINGS):
                middle = (low * high) ** 0.5
                low, high = (middle, high) if self.speed(asked, middle) > asked.published else (low, middle)
            self._constants[asked.row_id] = (low * high) ** 0.5
        return self._constants[asked.row_id]

    def constant_of(self, rows: Iterable[ScaleQuestion]) -> float | None:
        """The median constant of rows; None without rows."""
        found = [self.constant(row) for row in rows]
        return median(found) if found else None


@dataclass(frozen=True, kw_only=True)
class ScaleResult:
    """Predicted over published samples a second of one device, less one. None where there is nothing to learn from."""

    asked: ScaleQuestion
    seconds: ParallelSeconds
    """The step from tables and data sheets alone."""
    from_nothing: float
    without_submitter: float | None
    """With the median constant of its program's rows of other submitters."""
    without_device: float | None
    """The same of other devices."""
    from_fewest: float | None
    """With the constant of the published speeds on the fewest devices, as `constant_efficiency`."""
    constant_efficiency: float | None
    """The trivial forecast: each device is as fast as with the fewest devices that were published."""

    @property
    def without_communication(self) -> float:
        """From nothing, if nothing had to be sent."""
        samples = self.seconds.samples / self.seconds.num_devices
        return samples / self.seconds.alone.step_s / self.asked.published - 1


FORECASTS = (
    "from_nothing",
    "without_communication",
    "without_submitter",
    "without_device",
    "from_fewest",
    "constant_efficiency",
)
"""The errors that a result has."""


@dataclass(frozen=True, kw_only=True)
class MedianError:
    num_rows: int
    median_abs_error: float | None
    """None without rows."""


def median_errors(results: Iterable[ScaleResult]) -> dict[str, MedianError]:
    """Returns how far each forecast was off, over the rows that it has an answer for."""
    listed = list(results)
    found = {}
    for name in FORECASTS:
        errors = [abs(error) for one in listed if (error := getattr(one, name)) is not None]
        found[name] = MedianError(num_rows=len(errors), median_abs_error=median(errors) if errors else None)
    return found


def where_the_count_grows(results: Iterable[ScaleResult]) -> list[ScaleResult]:
    """Returns rows of which the same model, device and program was published on fewer devices."""
    return [one for one in results if one.constant_efficiency is not None]


def scale_results(asked: Sequence[ScaleQuestion], forecasts: ScaleForecasts) -> list[ScaleResult]:
    """Predicts every row. Rows of other programs, devices and models say nothing about a row."""
    return [_result(one, asked, forecasts) for one in asked]


def _result(one: ScaleQuestion, asked: Sequence[ScaleQuestion], forecasts: ScaleForecasts) -> ScaleResult:
    alike = [two for two in asked if two.program is one.program and two.model == one.model]
    series = [two for two in alike if two.device.name == one.device.name]
    fewest = min(two.num_devices for two in series)
    first = [two for two in series if two.num_devices == fewest < one.num_devices]

    def error(constant: float | None) -> float | None:
        return None if constant is None else forecasts.speed(one, constant) / one.published - 1

    return ScaleResult(
        asked=one,
        seconds=forecasts.seconds(one),
        from_nothing=forecasts.speed(one) / one.published - 1,
        without_submitter=error(forecasts.constant_of(two for two in alike if two.submitter != one.submitter)),
        without_device=error(forecasts.constant_of(two for two in alike if two.device.name != one.device.name)),
        from_fewest=error(forecasts.constant_of(first)),
        constant_efficiency=median(two.published for two in first) / one.published - 1 if first else None,
    )
