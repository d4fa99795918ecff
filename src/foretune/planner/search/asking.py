"""A search as the user typed it."""

from collections.abc import Sequence
from dataclasses import replace

from foretune.catalog.devices import Device
from foretune.config.overrides import parse_overrides
from foretune.config.reading import Asked
from foretune.core.errors import Mistakes, UnknownName, UserError
from foretune.core.units import seconds_of_text, usd_of_text
from foretune.planner.asking import LiveSource, PlanRequest, asked_of, find_subject
from foretune.planner.planning import footprint
from foretune.planner.search.best import GOALS, PlanLimits
from foretune.planner.search.searching import Answer, search
from foretune.planner.search.sought import Sought
from foretune.planner.sizing import size_of, with_default_targets
from foretune.planner.traces import Traces

USUAL_COUNTS = (1, 2, 4, 8)
"""Numbers of devices that a search tries: up to one usual machine."""
_COUNT_KEY = "parallel.devices"


def sought_of(
    request: PlanRequest,
    *,
    goal: str,
    deadline: str | None = None,
    budget: str | None = None,
    min_batch: int = 1,
    num_devices: str | None = None,
) -> Sought:
    """Parses the goal and its limits; raises with every mistake at once."""
    mistakes = Mistakes()
    chosen = next((known for known in GOALS if known == goal), None)
    deadline_s = mistakes.attempt(_seconds, deadline) if deadline is not None else None
    budget_usd = mistakes.attempt(_usd, budget) if budget is not None else None
    mistakes.attempt(_check, goal, min_batch)
    typed = frozenset(".".join(path) for path, _ in parse_overrides(request.overrides, Mistakes()))
    counts = mistakes.attempt(_counts, num_devices, typed)
    mistakes.raise_all()
    assert chosen is not None, "another goal is a mistake"
    assert counts is not None, "other counts are a mistake"
    return Sought(
        goal=chosen,
        limits=PlanLimits(deadline_s=deadline_s, budget_usd=budget_usd),
        min_batch=min_batch,
        typed=typed,
        counts=counts,
        terms=request.terms,
    )


def search_question(
    request: PlanRequest, sought: Sought, devices: Sequence[Device], live: LiveSource | None, *, draws: bool = False
) -> tuple[Asked, Answer]:
    asked = asked_of(request)
    subject = find_subject(asked.model, live)
    # Traces are stored under the catalogue's name, wherever the model is.
    experiment = with_default_targets(asked.experiment.model_copy(update={"model": subject.row.name}), subject.geometry)
    size = size_of(
        experiment,
        subject.geometry,
        height_px=request.height_px,
        width_px=request.width_px,
        num_frames=request.num_frames,
    )
    now = experiment.parallel.devices
    sought = replace(
        sought,
        # It states the samples of a step, which the search divides again.
        typed=sought.typed - {"train.gradient_accumulation"},
        counts=(now,) if _COUNT_KEY in sought.typed else tuple({*sought.counts, now}),
    )
    traces = Traces(live.tracer(asked.model) if live is not None else None)
    return asked, search(footprint(experiment, subject, size, traces), devices, sought, draws=draws)


def _counts(text: str | None, typed: frozenset[str]) -> tuple[int, ...]:
    """Parses `--devices`."""
    if text is None:
        return USUAL_COUNTS
    if _COUNT_KEY in typed:
        raise UserError(f"--devices {text}: {_COUNT_KEY} says how many already. Leave out one of the two")
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UserError(f"--devices {text}: not numbers of devices. Write: --devices 1,2,4,8")
    return tuple(sorted({int(part) for part in parts}))


def _check(goal: str, min_batch: int) -> None:
    if goal not in GOALS:
        raise UnknownName("goal", goal, GOALS)
    if min_batch < 1:
        raise UserError(f"--min-batch {min_batch}: a batch has at least 1 sample")


def _seconds(text: str) -> float:
    found = seconds_of_text(text)
    if found is None:
        raise UserError(f"--deadline {text} is not a time. Write it with its unit: --deadline 6h, or 90min")
    return found


def _usd(text: str) -> float:
    found = usd_of_text(text)
    if found is None:
        raise UserError(f"--budget {text} is not an amount of US dollars. Write: --budget 20usd")
    return found
