"""Is everything there, and in the order in which a run does it?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.choices.run_schedule import RunSchedule
from foretune.core.vocabulary import RunPhase
from foretune.record.log_lines import Event

ASYNCHRONOUS = "saves_asynchronously"
"""The field of a start whose saves are asynchronous."""
# What a run does in a fixed order. Others come when they come: sensors, alarms, failures.
_ORDERED = ("step", "saved", "validated", "paused")


@dataclass
class LoggedSession:
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
    def saves_asynchronously(self) -> bool:
        """Saves are then done some steps after the pause in which they began. A resumed run may change it."""
        return bool(self.started.get(ASYNCHRONOUS))

    @property
    def num_done(self) -> int:
        """Steps done when it ended, as its step events tell."""
        steps = self.of("step")
        return int(steps[-1]["step"]) + 1 if steps else self.first_step


@dataclass(frozen=True)
class LoggedSchedule:
    """What a log should hold, by the schedule of its run."""

    schedule: RunSchedule
    num_steps: int | None
    """None where time decides, and nobody knows beforehand which step is the last."""
    has_pauses: bool
    """Logs of early releases have no pauses."""

    @classmethod
    def of(cls, experiment: Experiment, effective: Mapping[str, Any], events: list[Event]) -> "LoggedSchedule":
        kinds = {event["kind"] for event in events}
        return cls(
            schedule=RunSchedule.of(experiment, steps_only=not kinds & {"saved", "validated", "paused"}),
            num_steps=None if effective["num_steps"] is None else int(effective["num_steps"]),
            has_pauses="paused" in kinds,
        )

    def expected(self, session: LoggedSession, validated: set[int]) -> Iterator[tuple[str, int]]:
        """Kinds of events and their steps, in order, as far as the session got; without asynchronous saves."""
        for phase, done in self._phases(session, validated):
            if phase is RunPhase.STEP:
                yield "step", done - 1
                continue
            if phase is RunPhase.VALIDATE:
                yield "validated", done
            elif not session.saves_asynchronously:
                yield "saved", done
            if self.has_pauses:
                yield "paused", done

    def saves(self, session: LoggedSession, validated: set[int]) -> list[int]:
        """The steps after which the session began to save, as far as it got.

        Of its last step this is known only if the pause for it ended: it may have waited for the save before.
        """
        paused = {event["step"] for event in session.of("paused")}
        due = self.due_saves(session, validated)
        return [done for done in due if done < session.num_done or done in paused]

    def due_saves(self, session: LoggedSession, validated: set[int]) -> list[int]:
        """The steps after which the session should have saved, as far as it got."""
        so_far = takewhile(lambda phase: phase[1] <= session.num_done, self._phases(session, validated))
        return [done for phase, done in so_far if phase is RunPhase.SAVE]

    def _phases(self, session: LoggedSession, validated: set[int]) -> Iterator[tuple[RunPhase, int]]:
        is_interrupted = session.ended is not None and session.ended["status"] == "interrupted"
        return self.schedule.phases(
            session.first_step,
            is_last=lambda done: done == self.num_steps,
            is_stopping=lambda done: is_interrupted and done == session.num_done,
            validated=validated,
        )


def sessions_in(events: list[Event], faults: list[str]) -> list[LoggedSession]:
    """Splits a log; events outside a session are faults."""
    sessions: list[LoggedSession] = []
    for event in events:
        if event["kind"] == "started":
            sessions.append(LoggedSession(event))
        elif not sessions or sessions[-1].ended is not None:
            faults.append(f"line {event['line']}: a {event['kind']!r} event outside of a run from start to end")
        elif event["kind"] == "ended":
            sessions[-1].ended = event
        else:
            sessions[-1].events.append(event)
    return sessions


def order_faults(sessions: list[LoggedSession], logged: LoggedSchedule) -> Iterator[str]:
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
        yield from _order_in(session, logged, {step for step in validated if step <= first} if first else set())
        yield from _path_faults(session)
        saved |= {event["step"] for event in session.of("saved")}
        if session.ended is None:
            # Killed between the end of a save and its line in the log; an asynchronous one may end steps before it.
            saved |= set(logged.due_saves(session, validated)[-2:])
        validated |= {event["step"] for event in session.of("validated")}


def _order_in(session: LoggedSession, logged: LoggedSchedule, validated: set[int]) -> Iterator[str]:
    """Where time decides, the last step that was made may have been the last one, or others were to follow."""
    if logged.num_steps is not None:
        yield from _order_by(session, logged, validated)
        return
    ended_here = list(_order_by(session, replace(logged, num_steps=session.num_done), validated))
    has_finished = session.ended is not None and session.ended["status"] == "finished"
    if ended_here and (has_finished or list(_order_by(session, logged, validated))):
        yield from ended_here


def _order_by(session: LoggedSession, logged: LoggedSchedule, validated: set[int]) -> Iterator[str]:
    found = [event for event in session.events if event["kind"] in _ORDERED]
    if session.saves_asynchronously:
        yield from _asynchronous_faults(session, logged.saves(session, validated))
        found = [event for event in found if event["kind"] != "saved"]
    # One more than was found, so that what is missing at the end is seen, though a run without a last step goes on.
    expected = list(islice(logged.expected(session, validated), len(found) + 1))
    end = session.ended
    for place, event in enumerate(found):
        wanted = expected[place] if place < len(expected) else None
        if (event["kind"], event["step"]) != wanted:
            there = f"{event['kind']!r} of step {event['step']}"
            yield f"line {event['line']}: {there} where {_named(wanted)} should be"
            return
    if end is None or end["status"] not in ("finished", "interrupted") or len(found) == len(expected):
        return
    # Asked to stop, a run leaves a validation, and its first step.
    may_miss = ("validated", session.num_done), ("step", session.first_step)
    if end["status"] == "finished" or expected[len(found)] not in may_miss:
        yield f"line {end['line']}: ended as {end['status']}, but {_named(expected[len(found)])} is missing"


def _asynchronous_faults(session: LoggedSession, begun: list[int]) -> Iterator[str]:
    """Each is done after the step it belongs to and before the next one begins; of a failed run the last may miss."""
    saved, end = session.of("saved"), session.ended
    step_lines = {event["step"] + 1: event["line"] for event in session.of("step")}
    pause_lines = {event["step"]: event["line"] for event in reversed(session.of("paused"))}
    for place, event in enumerate(saved):
        wanted = begun[place] if place < len(begun) else None
        if event["step"] != wanted:
            should = "nothing" if wanted is None else f"'saved' of step {wanted}"
            yield f"line {event['line']}: 'saved' of step {event['step']} where {should} should be"
            return
        following = pause_lines.get(begun[place + 1]) if place + 1 < len(begun) else None
        is_early = event["line"] < step_lines.get(wanted, 0)
        if is_early or (following is not None and event["line"] > following):
            yield f"line {event['line']}: 'saved' of step {wanted} is not between its step and the next save"
    must_be_whole = end is not None and end["status"] in ("finished", "interrupted")
    if len(begun) - len(saved) > (0 if must_be_whole else 1):
        line = session.started["line"] if end is None else end["line"]
        yield f"line {line}: 'saved' of step {begun[len(saved)]} is missing"


def _path_faults(session: LoggedSession) -> Iterator[str]:
    for event in session.of("saved"):
        if event["path"] != f"step-{event['step']:09d}":
            yield f"line {event['line']}: the checkpoint of step {event['step']} cannot be named {event['path']}"


def _named(wanted: tuple[str, int] | None) -> str:
    return "nothing" if wanted is None else f"{wanted[0]!r} of step {wanted[1]}"
