"""`foretune data encode` in the terminal: a line as each part ends, progress, and what came of it."""

from typing import Protocol

from foretune.core.units import bytes_text, counted_text, duration_text, rate_text


class _Outcome(Protocol):
    @property
    def kind(self) -> str: ...

    @property
    def reason(self) -> str | None: ...

    @property
    def seconds(self) -> float: ...


class _Part(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def outcome(self) -> _Outcome: ...

    @property
    def is_reused(self) -> bool: ...

    @property
    def is_repeated(self) -> bool: ...


class _Progress(Protocol):
    @property
    def num_parts_done(self) -> int: ...

    @property
    def num_parts(self) -> int: ...

    @property
    def samples_per_s(self) -> float | None: ...

    @property
    def left_s(self) -> float | None: ...


class _Encoded(Protocol):
    @property
    def place(self) -> str: ...

    @property
    def num_samples(self) -> int: ...

    @property
    def num_reused(self) -> int: ...

    @property
    def num_shards(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    @property
    def seconds(self) -> float: ...


def part_line(part: _Part, progress: _Progress) -> str:
    """One part that has ended: [3/8] part 000002: done, took 42 s."""
    begin = f"[{progress.num_parts_done}/{progress.num_parts}] part {part.name}: "
    outcome = part.outcome
    if outcome.kind == "done":
        return begin + ("finished earlier" if part.is_reused else f"done, took {duration_text(outcome.seconds)}")
    again = " It is performed again; what it had encoded is used." if part.is_repeated else ""
    return begin + f"{outcome.kind}. {(outcome.reason or '').strip()}{again}"


def progress_line(progress: _Progress) -> str:
    """What stands before the bar: encoding (12.3 samples/s, 5 min left)."""
    if progress.samples_per_s is None or progress.left_s is None:
        return "encoding"
    return f"encoding ({rate_text(progress.samples_per_s, 'sample')}, {duration_text(progress.left_s)} left)"


def summary_text(encoded: _Encoded) -> str:
    """20 samples in 3 shards, 1.2 MiB (60 KiB per sample); 12.3 samples/s."""
    per_sample = bytes_text(encoded.num_bytes / max(encoded.num_samples, 1))
    size = f"{counted_text(encoded.num_shards, 'shards')}, {bytes_text(encoded.num_bytes)} ({per_sample} per sample)"
    num_now = encoded.num_samples - encoded.num_reused
    speed = f"; {rate_text(num_now / encoded.seconds, 'sample')}" if num_now and encoded.seconds > 0 else ""
    return f"{encoded.place}: {counted_text(encoded.num_samples, 'samples')} in {size}{speed}"
