"""What the plan says about a published row: the peak that was published, and whether it fits."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foretune import catalog
from foretune.backtests.questions import BacktestQuestion
from foretune.catalog.devices import Device
from foretune.choices.method import rank_of
from foretune.choices.training import Precision
from foretune.core.values.plan import Verdict
from foretune.core.vocabulary import LASTING, MemoryPart, RunPhase, StepPhase
from foretune.planner.allocator import CachingAllocator
from foretune.planner.block_events import Event
from foretune.planner.encoders import BYTES_PER_WEIGHT, Extent, autoencoder_pass, text_pass
from foretune.planner.overheads import Overhead, overhead_for, usable_bytes, with_workspaces
from foretune.planner.replay import replay
from foretune.planner.sizing import StepSize, with_default_targets
from foretune.planner.streams import Stream, split
from foretune.planner.traces import Traces, step_events
from foretune.planner.verdict import Held, Replays, judge
from foretune.trace.shipped import geometries

# Where a row does not name its device, or names one that is not in the catalogue.
_USUAL_DEVICE = "a100-80gb-sxm"
_RESIDENT = "encoders"


@dataclass(frozen=True)
class Forecast:
    """The three peaks of one row."""

    allocated_bytes: int
    reserved_bytes: int
    process_bytes: int
    verdict: Verdict | None
    """None where the device is not known."""

    def of(self, peak: str) -> int:
        by_kind = {
            "allocated": self.allocated_bytes,
            "reserved": self.reserved_bytes,
            "process": self.process_bytes,
        }
        return by_kind[peak]


@dataclass
class LastEvents:
    """The allocations of the row that was asked for last: sources often publish one training on several devices."""

    _asked: BacktestQuestion | None = None
    _events: list[Event] = field(default_factory=list)
    _played: dict[tuple[int, ...], CachingAllocator] = field(default_factory=dict)

    def of(self, asked: BacktestQuestion, traces: Traces) -> list[Event]:
        training = replace(
            asked, row_id="", source="", published=None, fitted=None, device=None, device_bytes=None, assumptions=()
        )
        if training != self._asked:
            self._events = question_events(asked, traces)
            self._played.clear()
            self._asked = training
        return self._events

    def replayed(self, asked: BacktestQuestion, traces: Traces, overhead: Overhead) -> CachingAllocator:
        """Devices differ in their workspaces alone."""
        events, key = self.of(asked, traces), overhead.workspaces_bytes
        if key not in self._played:
            expandable = asked.dialect.expandable_segments
            self._played[key] = replay(with_workspaces(events, overhead), expandable_segments=expandable)
        return self._played[key]


def forecast(asked: BacktestQuestion, traces: Traces, last: LastEvents | None = None) -> Forecast:
    """Runs the row's experiment as the publishing program would have."""
    device = catalog.device(asked.device or _USUAL_DEVICE)
    # Published peaks were measured with earlier releases of torch.
    overhead = overhead_for(device, shares_workspace=False)
    known = last or LastEvents()
    # What torch calls allocated is the size of blocks, rests that were too small to split off included.
    played = known.replayed(asked, traces, overhead)
    held = Held(played.peak_allocated_bytes, played.peak_reserved_bytes)
    has_device = asked.device_bytes is not None
    return Forecast(
        allocated_bytes=held.allocated_bytes,
        reserved_bytes=held.reserved_bytes,
        process_bytes=held.reserved_bytes + overhead.context.likely,
        verdict=_verdict(asked, known.of(asked, traces), held, device, overhead) if has_device else None,
    )


def question_events(asked: BacktestQuestion, traces: Traces) -> list[Event]:
    """Allocations of the published program: what is loaded and freed before, what stays, one step."""
    geometry = geometries()[asked.model]
    experiment = with_default_targets(asked.experiment, geometry)
    size = StepSize(
        batch_size=asked.sizes.batch_size,
        height_px=asked.sizes.height_px,
        width_px=asked.sizes.width_px,
        num_frames=asked.sizes.num_frames,
        num_text_tokens=asked.sizes.num_text_tokens,
        rank=rank_of(experiment.method),
    )
    kept, body = split(step_events(traces, experiment, size, geometry, habits=asked.dialect.habits))
    precision = experiment.train.precision
    stream = Stream()
    early = [stream.hold(_component_bytes(name, precision), _RESIDENT, RunPhase.LOAD) for name in asked.loaded_before]
    states = [event for event in kept if event.category == MemoryPart.OPTIMIZER_STATE]
    stream.run([event for event in kept if event.category != MemoryPart.OPTIMIZER_STATE], keeps=LASTING)
    for number in early:
        stream.release(number, _RESIDENT, RunPhase.LOAD)
    for name in asked.resident:
        stream.hold(_component_bytes(name, precision), _RESIDENT, RunPhase.LOAD)
    update = next((index for index, event in enumerate(body) if event.phase == StepPhase.OPTIMIZER), len(body))
    _play_encoding(stream, asked, traces, size.extent(geometry))
    # The first step makes the optimizer's state between its gradients and its update; the second finds it there.
    stream.run([*body[:update], *states, *body[update:]], keeps=LASTING)
    _play_encoding(stream, asked, traces, size.extent(geometry))
    stream.run(body)
    return stream.events


def _play_encoding(stream: Stream, asked: BacktestQuestion, traces: Traces, extent: Extent) -> None:
    """Encoders that stay are used before each step, for one batch."""
    levers, precision = asked.experiment.levers, asked.experiment.train.precision
    for name in asked.resident:
        row = catalog.component(name)
        if row.role == "vae" and not levers.cache_latents:
            tile_px = asked.dialect.tile_px.get(name, max(extent.height_px, extent.width_px))
            tile = replace(extent, height_px=min(extent.height_px, tile_px), width_px=min(extent.width_px, tile_px))
            found = autoencoder_pass(traces.forward, name, "encode", precision, tile, asked.sizes.batch_size)
            # Traced in fp32, as this project encodes; a resident autoencoder is in the numbers of the training.
            share = BYTES_PER_WEIGHT[precision] / BYTES_PER_WEIGHT["fp32"]
            events = (event._replace(num_bytes=round(event.num_bytes * share)) for event in found.events)
            stream.play(events, "encoding", {})
        if row.role == "text_encoder" and not levers.cache_text:
            tokens = asked.sizes.num_text_tokens
            found = text_pass(traces.forward, name, precision, asked.sizes.batch_size, tokens)
            stream.play(found.events, "encoding", {})


def _component_bytes(name: str, precision: Precision) -> int:
    return catalog.component(name).num_params * BYTES_PER_WEIGHT[precision]


def _verdict(asked: BacktestQuestion, events: list[Event], held: Held, device: Device, overhead: Overhead) -> Verdict:
    """Against the device that the row names, or one of the size that it gives."""
    assert asked.device_bytes is not None
    usable = usable_bytes(device) if asked.device is not None else asked.device_bytes - overhead.driver.likely
    expandable = asked.dialect.expandable_segments
    replays = _Replayed(held)
    return judge(events, overhead, usable, expandable_segments=expandable, is_headless=True, replays=replays).verdict


class _Replayed(Replays):
    """A replay that was made already, with the device's workspaces in it."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self._held = held

    def free(self, events: Sequence[Event], overhead: Overhead, *, expandable_segments: bool) -> Held:
        return self._held
