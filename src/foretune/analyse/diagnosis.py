"""What holds a run back, in words, with the number behind it and the fix."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from foretune.analyse.memory_growth import find_leak
from foretune.analyse.throttling import find_throttling
from foretune.analyse.trace_digest import TraceDigest
from foretune.core.units import bytes_text, duration_text
from foretune.core.vocabulary import COMPUTING, TimePhase
from foretune.record.events import read_events
from foretune.record.run_directory import RunDirectory

Kind = Literal[
    "input-bound",
    "encode-bound",
    "logging-bound",
    "memory leak",
    "host-bound",
    "throttled",
    "copy-bound",
    "idle",
    "healthy",
]

_MOST_INPUT = 0.15
"""Share of the step that may wait for data; with less there is little to win."""
_MOST_ENCODING = 0.15
"""Share of the step that may encode images and captions; all of it can be done once, before the first step."""
_MOST_LOGGING = 0.25
"""Share of the step that may go to events and trackers: of steps of a few milliseconds some of it always does."""
_SOLVED_INPUT = 0.05
_HEADROOM = 1.25
"""Processes that make batches are not all as fast as the one that was timed, and share the machine with the step."""
_MOST_LAUNCH = 0.3
_MOST_IDLE = 0.3
_MOST_COPY = 0.2
_MOST_INPUT_IN_TRACE = 0.3
"""Twice as much as of unprofiled steps, because the profiler slows the making of batches, too."""
_LEAST_HOST = 0.8
"""Share of the step in which the host hands over work, from which on the device may be waiting for it."""
_MOST_WARMUP = 10
_OVERHEADS = {
    TimePhase.DATA: "waiting for data",
    "input": "waiting for data",
    TimePhase.ENCODE: "encoding images and captions",
    "launch": "starting operators",
    "idle": "idling",
    "copy": "copying tensors",
    TimePhase.OTHER: "work outside of all phases",
}
"""Phases of a step and shares of a trace that are no computing, in words."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One thing that holds a run back, or the word that nothing does."""

    kind: Kind
    share: float
    """The number behind it: of the step's time, of the samples, or of the memory that was held before."""
    finding: str
    fix: str | None = None
    """What to change, and what it would give where that can be said."""

    @property
    def text(self) -> str:
        return f"{self.kind}: {self.finding}" + (f"; {self.fix}" if self.fix else "")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a diagnosis rests on."""

    steps: Sequence[Mapping[str, Any]]
    """Step events in order."""
    telemetry: Sequence[Mapping[str, Any]] = ()
    digest: TraceDigest | None = None
    num_workers: int = 0
    uncached: tuple[str, ...] = ()
    """Levers that are off and would encode before the first step."""
    num_usable_cpus: int | None = None
    profiled: frozenset[int] = field(default_factory=frozenset)
    """Steps that the profiler slowed."""

    def steady(self) -> list[Mapping[str, Any]]:
        """Without the first steps, which allocate and tune, and without those that were looked at."""
        rest = [step for step in self.steps if step["step"] not in self.profiled]
        return list(rest[min(_MOST_WARMUP, len(rest) // 4) :])


def evidence_of(run: Path, digest: TraceDigest | None = None) -> Evidence:
    """What a run directory holds of it."""
    directory = RunDirectory.open(run)
    _, experiment, _ = directory.read_experiment()
    record = directory.read_record()
    steps: dict[int, Mapping[str, Any]] = {}
    telemetry, profiled = [], set()
    for event in read_events(directory.events):
        if event["kind"] == "step":
            steps[event["step"]] = event
        elif event["kind"] == "telemetry":
            telemetry.append(event)
        elif event["kind"] == "profiled":
            # The step after the last one has the writing of the trace in it.
            first, last = event["first_step"], event["first_step"] + event["num_steps"]
            profiled |= set(range(first, last + 1))
    return Evidence(
        steps=[steps[number] for number in sorted(steps)],
        telemetry=telemetry,
        digest=digest,
        num_workers=experiment.data.num_workers,
        uncached=tuple(
            f"levers.{name}=true" for name in ("cache_latents", "cache_text") if not getattr(experiment.levers, name)
        ),
        num_usable_cpus=None if record is None else record.environment.get("num_usable_cpus"),
        profiled=frozenset(profiled),
    )


def diagnose(evidence: Evidence) -> tuple[Diagnosis, ...]:
    """Everything that holds a run back, or one word that it is healthy.

    Memory and throttling come first, because they make every other number doubtful; then the largest share of the step.
    """
    steady = evidence.steady()
    if not steady:
        return ()
    first = [_leak(steady, "device"), _leak(steady, "host"), _throttled(evidence)]
    logging_bound = _logging_bound(steady)
    of_the_step = [
        _input_bound(evidence, steady),
        _encode_bound(evidence, steady),
        logging_bound,
        _host_bound(evidence, steady),
        _copy_bound(evidence.digest),
        None if logging_bound else _idle(evidence.digest),
    ]
    by_share = sorted((one for one in of_the_step if one is not None), key=lambda one: -one.share)
    found = (*(one for one in first if one is not None), *by_share)
    return found or (_healthy(steady, evidence.digest),)


def _phases(steps: Iterable[Mapping[str, Any]], key: str = "phases_s") -> dict[str, float]:
    """Seconds of a typical step by phase. The median is not moved by one slow read."""
    named = [step.get(key) or {} for step in steps]
    names = dict.fromkeys(name for phases in named for name in phases)
    return {name: statistics.median(phases.get(name, 0.0) for phases in named) for name in names}


def _mean_s(steps: Sequence[Mapping[str, Any]], phase: str) -> tuple[float, float]:
    """Seconds of a step, and of one of its phases, on average."""
    total_s = sum(step["step_s"] for step in steps)
    inside_s = sum((step.get("phases_s") or {}).get(phase, 0.0) for step in steps)
    return total_s / len(steps), inside_s / len(steps)


def _host_mean_s(steps: Sequence[Mapping[str, Any]], phase: str) -> float:
    """Seconds that the host is in a phase of a step, on average."""
    return statistics.fmean((step.get("host_phases_s") or step.get("phases_s") or {}).get(phase, 0.0) for step in steps)


def _input_bound(evidence: Evidence, steady: Sequence[Mapping[str, Any]]) -> Diagnosis | None:
    """By sums, because a loader with several processes delivers in bursts: most batches are there, some take long."""
    step_s, wait_s = _mean_s(steady, TimePhase.DATA)
    share = wait_s / step_s
    if share <= _MOST_INPUT:
        return _input_bound_in_trace(evidence.digest)
    rest_s = step_s - wait_s
    num = evidence.num_workers
    # The loop's own process makes a batch while the host is in that phase, longer than a device that still has work
    # waits for it; several processes that cannot keep up share the whole step.
    batch_s = _host_mean_s(steady, TimePhase.DATA) if num == 0 else num * step_s
    finding = f"{share:.0%} of the step waits for data ({duration_text(wait_s)} of {duration_text(step_s)})"
    most = evidence.num_usable_cpus or 1
    for wanted in (1, 2, 4, 8, 16, 32, 64):
        period_s = max(_HEADROOM * batch_s / wanted, rest_s)
        left = (period_s - rest_s) / period_s
        if wanted > num and left <= _SOLVED_INPUT:
            cores = "" if wanted <= most else f" on {wanted} processor cores (here are {most})"
            fix = f"with data.num_workers={wanted} it would be about {left:.0%}{cores}"
            return Diagnosis(kind="input-bound", share=share, finding=finding, fix=fix)
    fix = f"a batch takes {duration_text(batch_s)} to make: cache what can be cached, or read from a faster disk"
    return Diagnosis(kind="input-bound", share=share, finding=finding, fix=fix)


def _input_bound_in_trace(digest: TraceDigest | None) -> Diagnosis | None:
    if digest is None or digest.shares.input <= _MOST_INPUT_IN_TRACE:
        return None
    return Diagnosis(
        kind="input-bound",
        share=digest.shares.input,
        finding=f"{digest.shares.input:.0%} of the profiled steps waits for data; steps without the profiler wait less",
        fix="profile more steps to see whether it stays, or raise data.num_workers",
    )


def _encode_bound(evidence: Evidence, steady: Sequence[Mapping[str, Any]]) -> Diagnosis | None:
    step_s, encode_s = _mean_s(steady, "encode")
    share = encode_s / step_s
    if share <= _MOST_ENCODING:
        return None
    finding = (
        f"{share:.0%} of the step encodes images and captions ({duration_text(encode_s)} of {duration_text(step_s)})"
    )
    fix = (
        f"with {' and '.join(evidence.uncached)} that is done once, before the first step"
        if evidence.uncached
        else None
    )
    return Diagnosis(kind="encode-bound", share=share, finding=finding, fix=fix)


def _logging_bound(steady: Sequence[Mapping[str, Any]]) -> Diagnosis | None:
    step_s, logging_s = _mean_s(steady, "logging")
    share = logging_s / step_s
    if share <= _MOST_LOGGING:
        return None
    finding = f"{share:.0%} of the step goes to logging ({duration_text(logging_s)} of {duration_text(step_s)})"
    fix = "a tracker or a disk is slow: fewer entries in track, or runs on a local disk"
    return Diagnosis(kind="logging-bound", share=share, finding=finding, fix=fix)


def _leak(steady: Sequence[Mapping[str, Any]], place: str) -> Diagnosis | None:
    held = [(step["step"], step["memory_bytes"][place]) for step in steady if place in step.get("memory_bytes", {})]
    growth = find_leak(held)
    if growth is None:
        return None
    where = "the device" if place == "device" else "the process"
    finding = (
        f"memory of {where} grows by {bytes_text(growth.bytes_per_step)} with every step, "
        f"by {bytes_text(growth.grown_bytes)} so far; {bytes_text(growth.held_bytes)} are held"
    )
    fix = "look for tensors that are kept over steps: losses that still have their graph, lists that only grow"
    return Diagnosis(kind="memory leak", share=growth.share, finding=finding, fix=fix)


def _throttled(evidence: Evidence) -> Diagnosis | None:
    found = find_throttling(evidence.telemetry, evidence.steps)
    if found is None:
        return None
    fix = "cool it better, or raise its power limit; a throttled measurement does not show what the device can do"
    return Diagnosis(kind="throttled", share=found.share, finding=found.sentence, fix=fix)


def _host_bound(evidence: Evidence, steady: Sequence[Mapping[str, Any]]) -> Diagnosis | None:
    fix = "a larger train.batch_size or levers.compile=regional gives the device more to do for each call"
    digest = evidence.digest
    if digest is not None and digest.shares.launch > _MOST_LAUNCH:
        share = digest.shares.launch
        finding = f"for {share:.0%} of the step the device waits for the host to start operators"
        if digest.device == "cpu":
            finding = f"{share:.0%} of the step passes between operators, in Python, to which the profiler adds"
        return Diagnosis(kind="host-bound", share=share, finding=finding, fix=fix)
    owed = [step["num_owed"] for step in steady if step.get("num_owed") is not None]
    if not owed:
        return None
    host_s = sum(_phases(steady, "host_phases_s").get(name, 0.0) for name in COMPUTING)
    step_s = statistics.median(step["step_s"] for step in steady)
    # A device that is behind still has work from steps before: it does not wait for the host.
    if statistics.median(owed) > 0 or host_s < _LEAST_HOST * step_s:
        return None
    finding = (
        f"the host needs {host_s / step_s:.0%} of the step to start its operators ({duration_text(host_s)} of "
        f"{duration_text(step_s)}), and the device is never behind"
    )
    return Diagnosis(kind="host-bound", share=host_s / step_s, finding=finding, fix=fix)


def _copy_bound(digest: TraceDigest | None) -> Diagnosis | None:
    if digest is None or digest.shares.copy <= _MOST_COPY:
        return None
    return Diagnosis(
        kind="copy-bound",
        share=digest.shares.copy,
        finding=f"{digest.shares.copy:.0%} of the step moves tensors between devices, types or layouts",
        fix="fewer swapped blocks, no activation offload, or one precision throughout",
    )


def _idle(digest: TraceDigest | None) -> Diagnosis | None:
    if digest is None or digest.shares.idle <= _MOST_IDLE:
        return None
    return Diagnosis(
        kind="idle",
        share=digest.shares.idle,
        finding=f"for {digest.shares.idle:.0%} of the step nothing is computed, loaded or started",
        fix="the phases above say where: logging to a slow disk or tracker is the usual cause",
    )


def _healthy(steady: Sequence[Mapping[str, Any]], digest: TraceDigest | None) -> Diagnosis:
    """The largest overhead is named even where it is small, in the numbers that stand above it."""
    phases = _phases(steady)
    total_s = sum(phases.values())
    if not total_s:
        return Diagnosis(kind="healthy", share=0.0, finding="its steps show nothing that holds them back")
    computing = sum(phases.get(name, 0.0) for name in COMPUTING) / total_s
    overheads = {_OVERHEADS.get(name, name): s / total_s for name, s in phases.items() if name not in COMPUTING}
    if digest is not None:
        shares = digest.shares
        of_trace = {"input": shares.input, "launch": shares.launch, "idle": shares.idle, "copy": shares.copy}
        overheads = {_OVERHEADS[name]: share for name, share in of_trace.items()}
    largest = max(overheads, key=lambda name: overheads[name], default=_OVERHEADS[TimePhase.DATA])
    share = overheads.get(largest, 0.0)
    finding = (
        f"{computing:.0%} of the step is forward, backward and optimizer; the largest overhead"
        f"{' of the profiled steps' if digest is not None else ''} is {largest} ({share:.0%})"
    )
    return Diagnosis(kind="healthy", share=share, finding=finding)
