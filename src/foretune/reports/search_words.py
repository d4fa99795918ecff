"""A recommendation in words, for the terminal, the page and the experiment file."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from foretune.core.units import counted_text, duration_text, memory_text, rounded_share_text, usd_text
from foretune.reports.question_text import subject_text
from foretune.reports.remedy_words import settings_text

if TYPE_CHECKING:
    from foretune.config.reading import Asked
    from foretune.planner.search.searching import Answer, Choice

_GOALS = {"cheapest": "Cheapest", "fastest": "Fastest", "smallest": "Smallest device"}


def question_line(asked: "Asked", answer: "Answer") -> str:
    """What all configurations train, and among which devices the search chose."""
    sizes = answer.best.plan.sizes
    frames = f" x {sizes['num_frames']} frames" if sizes["num_frames"] > 1 else ""
    cost = answer.best.plan.cost
    steps = "" if cost is None or cost.num_steps is None else f", {cost.num_steps:,} steps"
    counts = answer.counts
    each = f", {counts[0]} to {counts[-1]} of each" if len(counts) > 1 else f", {counts[0]} of each"
    kinds = counted_text(answer.num_kinds, "kinds of device")
    return (
        f"{asked.experiment.model}: {subject_text(asked)}, {sizes['width_px']} x {sizes['height_px']} px{frames}, "
        f"{counted_text(answer.num_samples, 'samples')} per optimizer step{steps}; searched {kinds}"
        f"{each if counts != (1,) else ''}."
    )


def answer_title(answer: "Answer") -> str:
    """The goal with its limits."""
    limits = answer.limits
    words = [_GOALS[answer.goal]]
    if limits.deadline_s is not None:
        words.append(f"within {duration_text(limits.deadline_s)}")
    if limits.budget_usd is not None:
        words.append(f"for at most {usd_text(limits.budget_usd)}")
    return " ".join(words)


def device_text(choice: "Choice") -> str:
    """The device, with its number if there are several."""
    count = choice.plan.world_size
    return choice.plan.device if count == 1 else f"{count} x {choice.plan.device}"


def outcome_text(choice: "Choice") -> str:
    """Time and price of the whole job."""
    spot = choice.plan.cost is not None and choice.plan.cost.spot is not None
    price = ", no price" if choice.usd is None else f" for {usd_text(choice.usd)}"
    return f"{duration_text(choice.total_s)}{price}{' on spot (expected)' if spot else ''}"


def why_text(answer: "Answer") -> str:
    """The reasons in a sentence, and the runner-up."""
    best = answer.best
    plan = best.plan
    assert plan.time is not None, "a configuration without a time is not recommended"
    memory = f"{memory_text(plan.process_bytes)} of {memory_text(plan.usable_bytes)}"
    each = " on each device" if plan.world_size > 1 else ""
    why = f"It fits in {memory}{each}; {_bound_by(plan.time.bound_by)}."
    return f"{why} {_runner_up(answer)}" if answer.runner_up is not None else why


def sentence(asked: "Asked", answer: "Answer") -> str:
    """The whole recommendation as text."""
    settings = settings_text(answer.best.words)
    chosen = f"{device_text(answer.best)} with {settings}" if settings else device_text(answer.best)
    title = f"{answer_title(answer)} for {asked.experiment.model}"
    return f"{title}: {chosen}, {outcome_text(answer.best)}. {why_text(answer)}"


def effort_lines(answer: "Answer") -> Iterator[str]:
    """Yields how much was looked at, and what was not."""
    yield (
        f"{answer.num_options:,} configurations: {answer.num_timed:,} timed, the memory of {answer.num_replayed:,} "
        "replayed; bounds rule out the others."
    )
    if answer.skipped_counts:
        counts = ", ".join(map(str, answer.skipped_counts))
        yield (
            f"Not searched: {counts} devices. They cannot divide the {answer.num_samples} samples of an optimizer "
            "step; more samples come from a larger train.gradient_accumulation."
        )
    for reason, names in answer.left_out.items():
        yield f"Left out: {', '.join(names)}; not known: {reason}"
    for reason, number in answer.without_time.items():
        yield f"Without a step time: {number:,} configurations; not known: {reason}"


def _bound_by(resource: str) -> str:
    words = {
        "compute": "most of a step is matrix products and attention",
        "bandwidth": "most of a step waits for memory bandwidth",
        "host": "most of a step waits for the CPU to issue kernels",
        "bus": "most of a step waits for copies between host and device",
        "communication": "most of a step waits for the other devices",
    }
    return words[resource]


def _runner_up(answer: "Answer") -> str:
    other = answer.runner_up
    assert other is not None, "only with one"
    settings = settings_text(other.words)
    named = f"{device_text(other)} with {settings}" if settings else device_text(other)
    return f"Runner-up on another device: {named}, {outcome_text(other)}{_more(answer)}."


def _more(answer: "Answer") -> str:
    """How much worse the runner-up is at what was searched for."""
    best, other = answer.best, answer.runner_up
    assert other is not None, "only with one"
    figures = (best.usd, other.usd) if answer.goal == "cheapest" else (best.total_s, other.total_s)
    if answer.goal == "smallest" or not figures[0] or figures[1] is None:
        return ""
    share = figures[1] / figures[0] - 1
    what = "costs" if answer.goal == "cheapest" else "takes"
    # Both have the error of a step time: which of two is better is not certain below it.
    costs = [choice.plan.cost for choice in (best, other) if choice.plan.cost is not None]
    high = max(cost.high_s / cost.total_s - 1 for cost in costs)
    unsure = f"; either may be the {answer.goal}, as times have a band of up to {rounded_share_text(high)}"
    return f", which {what} {rounded_share_text(share)} more{unsure if share < high else ''}"
