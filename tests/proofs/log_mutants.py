"""Ways to spoil the files of a run. Each changes one thing that a run never does.

`resealed` ones know of the digest in the log's last line and write a fitting one: what betrays them is that they make
no sense, not that the file was touched.
"""

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from foretune.record.events import new_digest

Event = dict[str, Any]
Mutation = Callable[[list[Event], random.Random], None]
"""Changes the events in place; raises StopIteration or IndexError where there is nothing of its kind to change."""


def read(run: Path) -> list[Event]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def write(run: Path, events: list[Event], *, reseal: bool) -> None:
    digest, lines = new_digest(b""), []
    for event in events:
        if reseal and event["kind"] == "ended":
            event["digest"] = digest.hexdigest()
        line = json.dumps(event) + "\n"
        digest.update(line.encode())
        lines.append(line)
    (run / "events.jsonl").write_text("".join(lines))


def of(events: list[Event], kind: str, chance: random.Random) -> Event:
    return chance.choice([event for event in events if event["kind"] == kind])


def last(events: list[Event], kind: str) -> Event:
    return [event for event in events if event["kind"] == kind][-1]


def _last_steps(events: list[Event]) -> list[Event]:
    """The steps that the last session wrote: none of them is superseded by a later one."""
    start = max(place for place, event in enumerate(events) if event["kind"] == "started")
    return [event for event in events[start:] if event["kind"] == "step"]


def drop(kind: str) -> Mutation:
    return lambda events, chance: events.remove(of(events, kind, chance))


def twice(kind: str) -> Mutation:
    def mutate(events: list[Event], chance: random.Random) -> None:
        event = of(events, kind, chance)
        events.insert(events.index(event), dict(event))

    return mutate


def swap_steps(events: list[Event], chance: random.Random) -> None:
    steps = _last_steps(events)
    place = chance.randrange(len(steps) - 1)
    first, second = events.index(steps[place]), events.index(steps[place + 1])
    events[first], events[second] = events[second], events[first]


def scaled(field: str, factor: float) -> Mutation:
    def mutate(events: list[Event], chance: random.Random) -> None:
        event = chance.choice(_last_steps(events))
        event[field] *= factor

    return mutate


def set_in(kind: str, field: str, value: Any) -> Mutation:
    def mutate(events: list[Event], chance: random.Random) -> None:
        event = of(events, kind, chance)
        assert event.get(field) != value, "nothing would change"
        event[field] = value

    return mutate


def without(kind: str, field: str) -> Mutation:
    def mutate(events: list[Event], chance: random.Random) -> None:
        del of(events, kind, chance)[field]

    return mutate


def earlier(events: list[Event], chance: random.Random) -> None:
    """A clock that went back."""
    event = events[chance.randrange(1, len(events))]
    event["time_s"] -= 3600


def renamed(kind: str, name: str) -> Mutation:
    def mutate(events: list[Event], chance: random.Random) -> None:
        of(events, kind, chance)["kind"] = name

    return mutate


def phase_moved(events: list[Event], chance: random.Random) -> None:
    phases_s = chance.choice(_last_steps(events))["phases_s"]
    name = max(phases_s, key=lambda phase: phases_s[phase])
    phases_s[name] *= 0.5


def phase_negative(events: list[Event], chance: random.Random) -> None:
    phases_s = of(events, "step", chance)["phases_s"]
    name = next(iter(phases_s))
    phases_s[name] = -phases_s[name] - 1e-3


def faster_everywhere(events: list[Event], chance: random.Random) -> None:
    """Every step half as long, its phases too: the record's summary tells."""
    for event in _last_steps(events):
        event["step_s"] *= 0.5
        event["phases_s"] = {name: seconds * 0.5 for name, seconds in event["phases_s"].items()}


def shifted_steps(events: list[Event], chance: random.Random) -> None:
    for event in _last_steps(events):
        event["step"] += 1


def first_loss(events: list[Event], chance: random.Random) -> None:
    next(event for event in events if event["kind"] == "step")["loss"] *= 0.9


def last_loss(events: list[Event], chance: random.Random) -> None:
    _last_steps(events)[-1]["loss"] *= 0.9


def other_status(events: list[Event], chance: random.Random) -> None:
    end = last(events, "ended")
    end["status"] = "failed" if end["status"] == "finished" else "finished"


def more_steps_done(events: list[Event], chance: random.Random) -> None:
    last(events, "ended")["steps_done"] += 1


def other_environment(events: list[Event], chance: random.Random) -> None:
    last(events, "started")["environment"]["cpu"] = "a faster one"


def held_out(events: list[Event], chance: random.Random) -> None:
    chosen = [event for event in events if event["kind"] == "validated" and event["held_out_loss"] is not None]
    chosen[-1]["held_out_loss"] *= 0.5


def middle_loss(events: list[Event], chance: random.Random) -> None:
    """Plausible by itself: only the digest tells."""
    chance.choice(_last_steps(events)[1:-1])["loss"] *= 0.99


def prettier_norm(events: list[Event], chance: random.Random) -> None:
    of(events, "step", chance)["grad_norm"] *= 0.5


def softer_memory(events: list[Event], chance: random.Random) -> None:
    of(events, "step", chance)["memory_bytes"]["host"] -= 4096


RESEALED: dict[str, Mutation] = {
    "a step is missing": drop("step"),
    "a step is there twice": twice("step"),
    "two steps change places": swap_steps,
    "steps are numbered from 1": shifted_steps,
    "the start is missing": drop("started"),
    "the end is missing": drop("ended"),
    "the end is there twice": twice("ended"),
    "a saved event is missing": drop("saved"),
    "a validation is missing": drop("validated"),
    "a pause is missing": drop("paused"),
    "a validation is there twice": twice("validated"),
    "time goes back": earlier,
    "a step takes a tenth": scaled("step_s", 0.1),
    "a step takes longer than its phases": scaled("step_s", 1.5),
    "every step takes half": faster_everywhere,
    "a phase loses half": phase_moved,
    "a phase is negative": phase_negative,
    "a step takes no time": set_in("step", "step_s", 0.0),
    "the learning rate is another": scaled("lr", 1.01),
    "a loss is text": set_in("step", "loss", "0.5"),
    "a loss is not a number": set_in("step", "loss", math.nan),
    "a loss is negative": set_in("step", "loss", -0.1),
    "the first loss is better": first_loss,
    "the last loss is better": last_loss,
    "a held-out loss is better": held_out,
    "a norm is negative": set_in("step", "grad_norm", -1.0),
    "a step has no loss": without("step", "loss"),
    "an event has no time": without("saved", "time_s"),
    "an unknown kind": renamed("saved", "svaed"),
    "a checkpoint of another name": set_in("saved", "path", "step-000000000"),
    "it ended otherwise": other_status,
    "it did more steps": more_steps_done,
    "another environment": other_environment,
    "sensors read in the future": set_in("telemetry", "read_s", 4e9),
    "more than busy": set_in("telemetry", "host", {"utilisation": 1.7}),
}
SEALED: dict[str, Mutation] = {
    "a loss in the middle": middle_loss,
    "a smaller norm": prettier_norm,
    "less memory": softer_memory,
}


def record_mutations() -> dict[str, Callable[[dict[str, Any]], None]]:
    """Changes of record.json alone: summaries that look better than the log."""

    def measured(name: str, factor: float) -> Callable[[dict[str, Any]], None]:
        def mutate(record: dict[str, Any]) -> None:
            record["measured"][name] *= factor

        return mutate

    def value(name: str, new: Any) -> Callable[[dict[str, Any]], None]:
        def mutate(record: dict[str, Any]) -> None:
            record[name] = new

        return mutate

    def phases(record: dict[str, Any]) -> None:
        record["measured"]["phases_s"]["forward"] *= 0.5

    return {
        "faster": measured("samples_per_s", 1.2),
        "shorter steps": measured("median_step_s", 0.9),
        "fewer times": lambda record: record["measured"].update(num_step_times=1),
        "a better end": measured("last_loss", 0.9),
        "a worse start": measured("first_loss", 1.5),
        "less memory": lambda record: record["measured"].update(peak_host_bytes=1024),
        "less forward": phases,
        "better held-out losses": lambda record: record["measured"].update(held_out_losses=[[0, 0.1]]),
        "a shorter run": lambda record: record.update(wall_s=record["wall_s"] + 100.0),
        "another machine": value("environment_hash", "0123456789abcdef"),
        "another environment": lambda record: record["environment"].update(cpu="a faster one"),
        "another question": value("question_hash", "0123456789abcdef"),
        "another experiment": value("experiment_hash", "0123456789abcdef"),
        "another run": value("run_id", "20260101-000000-00000000"),
        "fewer weights": value("num_params", 1),
        "more steps": lambda record: record["outcome"].update(steps_done=record["outcome"]["steps_done"] + 1),
        "a field of its own": value("verdict", "fast"),
    }


def file_mutations() -> dict[str, Callable[[Path], None]]:
    """Whole files, and the experiment."""

    def experiment(*keys: str, to: Any) -> Callable[[Path], None]:
        def mutate(run: Path) -> None:
            path = run / "experiment.yaml"
            content = yaml.safe_load(path.read_text())
            inner = content
            for key in keys[:-1]:
                inner = inner[key]
            inner[keys[-1]] = to
            path.write_text(yaml.safe_dump(content, sort_keys=False))

        return mutate

    def cut(run: Path) -> None:
        path = run / "events.jsonl"
        path.write_bytes(path.read_bytes()[:-7])

    def emptied(run: Path) -> None:
        (run / "events.jsonl").write_text("")

    def garbage(run: Path) -> None:
        lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
        lines.insert(2, '{"time_s": 1, "kind"\n')
        (run / "events.jsonl").write_text("".join(lines))

    def foreign_environment(run: Path) -> None:
        path = run / "environment.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "cpu": "a faster one"}))

    return {
        "no record": lambda run: (run / "record.json").unlink(),
        "no log": lambda run: (run / "events.jsonl").unlink(),
        "no environment": lambda run: (run / "environment.json").unlink(),
        "the log is cut short": cut,
        "the log is empty": emptied,
        "a broken line": garbage,
        "the environment is another": foreign_environment,
        "another batch size": experiment("resolved", "train", "batch_size", to=64),
        "another number of steps": experiment("effective", "num_steps", to=2),
        "another seed": experiment("resolved", "train", "seed", to=4242),
    }


@dataclass(frozen=True)
class Mutant:
    """One way to spoil, under a name that says how."""

    name: str
    spoil: Callable[[Path, random.Random], None]


def mutants() -> list[Mutant]:
    def in_log(mutation: Mutation, *, reseal: bool) -> Callable[[Path, random.Random], None]:
        def spoil(run: Path, chance: random.Random) -> None:
            events = read(run)
            mutation(events, chance)
            write(run, events, reseal=reseal)

        return spoil

    def in_record(mutation: Callable[[dict[str, Any]], None]) -> Callable[[Path, random.Random], None]:
        def spoil(run: Path, chance: random.Random) -> None:
            path = run / "record.json"
            record = json.loads(path.read_text())
            mutation(record)
            path.write_text(json.dumps(record))

        return spoil

    def in_files(mutation: Callable[[Path], None]) -> Callable[[Path, random.Random], None]:
        return lambda run, chance: mutation(run)

    return [
        *(Mutant(f"log, resealed: {name}", in_log(m, reseal=True)) for name, m in RESEALED.items()),
        *(Mutant(f"log: {name}", in_log(m, reseal=False)) for name, m in SEALED.items()),
        *(Mutant(f"record: {name}", in_record(m)) for name, m in record_mutations().items()),
        *(Mutant(f"files: {name}", in_files(m)) for name, m in file_mutations().items()),
    ]
