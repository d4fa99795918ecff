"""Did a run with a time budget end when its time was up, by what its log says?"""

from collections.abc import Iterator

from foretune.choices.training import Train
from foretune.core.values import RunRecord
from foretune.record.log_order import LoggedSession
from foretune.record.log_summary import reported_events

_ROUNDING_S = 1e-6


def budget_faults(record: RunRecord, sessions: list[LoggedSession], train: Train) -> Iterator[str]:
    """A clock that counts steps can be added up again; of one that counts the whole run only its end is known."""
    counted_s, limit_s = record.measured.counted_s, train.seconds
    if limit_s is None:
        if counted_s is not None:
            yield f"record.json: {counted_s:.3f} s were counted, but no time was requested"
        return
    if counted_s is None:
        yield "record.json: a time was requested, but what was counted is not recorded"
        return
    if record.outcome.status == "finished" and counted_s < limit_s - _ROUNDING_S:
        yield f"record.json: finished after {counted_s:.3f} s of {limit_s:g} s"
    if train.clock == "run":
        return
    times_s = [event["step_s"] for event in reported_events(sessions)[0]]
    logged_s = sum(times_s)
    if abs(logged_s - counted_s) > _ROUNDING_S * (len(times_s) + 1):
        yield f"record.json: {counted_s:.6f} s were counted, by the log {logged_s:.6f} s"
    # A device may owe the numbers of some steps when the next one begins, so that more than one may come too late.
    num_early = len(times_s) - 1 - max((event.get("num_owed", 0) for event in sessions[-1].of("step")), default=0)
    if sum(times_s[: max(0, num_early)]) >= limit_s:
        yield f"record.json: steps were made after {limit_s:g} s had passed"
