"""Do the numbers of a log agree with each other, with the clock and with what was asked?"""

import math
from collections.abc import Iterator
from itertools import pairwise

from foretune.choices.experiment import Experiment
from foretune.choices.schedule import learning_rate
from foretune.record.log_lines import Event, is_number
from foretune.record.log_order import LoggedSession

# Phases are written to a tenth of a microsecond; there are at most ten of them.
_ROUNDING_S = 2e-6
# Between the end of a step and the writing of its event other programs may run.
_SLACK_S = 0.5
_SLACK_SHARE = 0.05


def slack_s(length_s: float) -> float:
    """How far two clocks that saw the same thing may be apart."""
    return _SLACK_S + _SLACK_SHARE * length_s


def time_faults(events: list[Event]) -> Iterator[str]:
    """Events are written as they happen, so time goes forward."""
    for before, after in pairwise(events):
        if after["time_s"] < before["time_s"]:
            yield f"line {after['line']}: {before['time_s'] - after['time_s']:.3f} s before the line above it"


def step_faults(session: LoggedSession, experiment: Experiment, num_steps: int | None) -> Iterator[str]:
    """Each step by itself."""
    for event in session.of("step"):
        line = event["line"]
        wanted = learning_rate(experiment.optimizer, event["step"], num_steps)
        if not math.isclose(event["lr"], wanted, rel_tol=1e-9, abs_tol=1e-15):
            yield f"line {line}: the learning rate of step {event['step']} is {event['lr']}, by the experiment {wanted}"
        phases_s = event.get("phases_s")
        if phases_s is not None and abs(sum(phases_s.values()) - event["step_s"]) > _ROUNDING_S:
            yield f"line {line}: the phases take {sum(phases_s.values()):.6f} s, the step {event['step_s']:.6f} s"


def clock_faults(session: LoggedSession) -> Iterator[str]:
    """Steps and pauses, added up, are the time that passed between the first step's event and the last's."""
    timed = [event for event in session.events if event["kind"] in ("step", "paused")]
    steps = [place for place, event in enumerate(timed) if event["kind"] == "step"]
    if len(steps) < 2:  # noqa: PLR2004 - a stretch has two ends
        return
    between = timed[steps[0] + 1 : steps[-1] + 1]
    logged_s = sum(event["step_s"] if event["kind"] == "step" else sum(event["phases_s"].values()) for event in between)
    passed_s = timed[steps[-1]]["time_s"] - timed[steps[0]]["time_s"]
    # A profiler that is stopped after the last step may be stopped before that step is logged.
    late_s = sum(event.get("stop_s", 0.0) for event in session.of("profiled"))
    has_pauses = any(event["kind"] == "paused" for event in timed) or not session.of("saved")
    if logged_s > passed_s + slack_s(passed_s):
        yield f"line {timed[steps[-1]]['line']}: steps and pauses take {logged_s:.3f} s, only {passed_s:.3f} s passed"
    elif has_pauses and logged_s < passed_s - late_s - slack_s(passed_s):
        yield f"line {timed[steps[-1]]['line']}: steps and pauses take {logged_s:.3f} s, but {passed_s:.3f} s passed"


def telemetry_faults(session: LoggedSession) -> Iterator[str]:
    """Sensors are read in order, while the run lasts, and tell what is possible."""
    last_s = session.started["time_s"] - _SLACK_S
    for event in session.of("telemetry"):
        if not last_s <= event["read_s"] <= event["time_s"] + 0.01:
            yield f"line {event['line']}: sensors read at a time that is not between the line above and this one"
        last_s = event["read_s"]
        sources = [event.get("host", {}), *event.get("devices", ()), *event.get("packages", ())]
        for name, value in ((name, value) for source in sources for name, value in source.items()):
            is_wrong = name not in ("source", "throttling") and (
                not is_number(value) or (value < 0 and "temp" not in name)
            )
            if is_wrong or (name == "utilisation" and value > 1):
                yield f"line {event['line']}: {name} cannot be {value!r}"
