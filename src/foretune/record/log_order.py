"""Is everything there, and in the order in which a run does it?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.record.log_lines import Event

# What a run does in a fixed order. Others come when they come: sensors, alarms, failures.
_ORDERED = ("step", "saved", "validated", "paused")


@dataclass
class Session:
    """What one process wrote: from `started` to `ended`, or to where it was killed."""

    started: Event
    events: list[Event] = field(default_factory=list)
    ended: Event | None = None

    @property
    def first_step(self) -> int:
        return int(self.started["first_step"])

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def num_done(self) -> int:
        """Steps done when it ended, as its step events tell."""
        steps = self.of("step")
        return int(steps[-1]["step"]) + 1 if steps else self.first_step


@dataclass(frozen=True)
class Schedule:
    """When a run saves and validates."""

    num_steps: int | None
    """None where time decides, and nobody knows beforehand which step is the last."""
    save_every: int | None
    validate_every: int | None
    is_training: bool
    """A bench and a profile make steps and nothing else."""
    has_pauses: bool
    """Logs of releases before pauses were told have none."""

    @classmethod
    def of(cls, experiment: Experiment, effective: Mapping[str, Any], events: list[Event]) -> "Schedule":
        kinds = {event["kind"] for event in events}
        return cls(
            num_steps=None if effective["num_steps"] is None else int(effective["num_steps"]),
            save_every=experiment.save.every,
            validate_every=experiment.validation.every,
            is_training=bool(kinds & {"saved", "validated", "paused"}),
            has_pauses="paused" in kinds,
        )

    def expected(self, first_step: int, validated: set[int]) -> Iterator[tuple[str, int]]:
        """What comes, in order, when nothing stops it."""
        if self.is_training and self._validates(first_step) and first_step not in validated:
            yield from self._with_pause("validated", first_step)
        for done in count(first_step + 1):
            if self.num_steps is not None and done > self.num_steps:
                return
            yield "step", done - 1
            if not self.is_training:
                continue
            if done == self.num_steps or (self.save_every and done % self.save_every == 0):
                yield from self._with_pause("saved", done)
            if self._validates(done):
                yield from self._with_pause("validated", done)

    def _with_pause(self, kind: str, done: int) -> Iterator[tuple[str, int]]:
        yield kind, done
        if self.has_pauses:
            yield "paused", done

    def _validates(self, done: int) -> bool:
        every = self.validate_every
        return done in (0, self.num_steps) or (every is not None and done % every == 0)


def sessions_in(events: list[Event], faults: list[str]) -> list[Session]:
    """Splits a log; events outside a session are faults."""
    sessions: list[Session] = []
    for event in events:
        if event["kind"] == "started":
            sessions.append(Session(event))
        elif not sessions or sessions[-1].ended is not None:
            faults.append(f"line {event['line']}: a {event['kind']!r} event outside of a run from start to end")
        elif event["kind"] == "ended":
            sessions[-1].ended = event
        else:
            sessions[-1].events.append(event)
    return sessions


def order_faults(sessions: list[Session], schedule: Schedule) -> Iterator[str]:
    """Missing, repeated or misplaced events, in all sessions."""
    saved: set[int] = set()
    validated: set[int] = set()
    for number, session in enumerate(sessions):
        line, first = session.started["line"], session.first_step
        if number == 0 and first != 0:
            yield f"line {line}: the first start is at step {first}, not 0"
        if number > 0 and first not in saved | {0}:
            yield f"line {line}: goes on from step {first}, at which nothing was saved"
        # Validations after the checkpoint are made again; without a checkpoint, all of them.
        yield from _order_in(session, schedule, {step for step in validated if step <= first} if first else set())
        yield from _path_faults(session)
        saved |= {event["step"] for event in session.of("saved")}
        validated |= {event["step"] for event in session.of("validated")}


def _order_in(session: Session, schedule: Schedule, validated: set[int]) -> Iterator[str]:
    """Where time decides, the last step that was made may have been the last one, or others were to follow."""
    if schedule.num_steps is not None:
        yield from _order_by(session, schedule, validated)
        return
    ended_here = list(_order_by(session, replace(schedule, num_steps=session.num_done), validated))
    has_finished = session.ended is not None and session.ended["status"] == "finished"
    if ended_here and (has_finished or list(_order_by(session, schedule, validated))):
        yield from ended_here


def _order_by(session: Session, schedule: Schedule, validated: set[int]) -> Iterator[str]:
    found = [event for event in session.events if event["kind"] in _ORDERED]
    # One more than was found, so that what is missing at the end is seen, though a run without a last step goes on.
    most = None if schedule.num_steps is not None else len(found) + 1
    expected = list(islice(schedule.expected(session.first_step, validated), most))
    end = session.ended
    if end is not None and end["status"] == "interrupted":
        expected = _interrupted(expected, session.num_done, schedule)
    for place, event in enumerate(found):
        wanted = expected[place] if place < len(expected) else None
        if (event["kind"], event["step"]) != wanted:
            there = f"{event['kind']!r} of step {event['step']}"
            yield f"line {event['line']}: {there} where {_named(wanted)} should be"
            return
    if end is not None and end["status"] in ("finished", "interrupted") and len(found) < len(expected):
        yield f"line {end['line']}: ended as {end['status']}, but {_named(expected[len(found)])} is missing"


def _interrupted(expected: list[tuple[str, int]], num_done: int, schedule: Schedule) -> list[tuple[str, int]]:
    """A run that is asked to stop finishes its step, saves and leaves."""
    if num_done == 0:
        return expected
    last = max(
        (place for place, (kind, step) in enumerate(expected) if (kind, step) == ("step", num_done - 1)), default=0
    )
    tail = [("saved", num_done), *([("paused", num_done)] if schedule.has_pauses else [])]
    return [*expected[: last + 1], *tail]


def _path_faults(session: Session) -> Iterator[str]:
    for event in session.of("saved"):
        if event["path"] != f"step-{event['step']:09d}":
            yield f"line {event['line']}: the checkpoint of step {event['step']} cannot be named {event['path']}"


def _named(wanted: tuple[str, int] | None) -> str:
    return "nothing" if wanted is None else f"{wanted[0]!r} of step {wanted[1]}"
