"""What one section of a page is about: an experiment with a model, and its plans for one or more devices."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from foretune import catalog
from foretune.core.units import bytes_text
from foretune.core.values.plan import PhaseMemory, Plan, Verdict
from foretune.reports.device_lines import DeviceLine
from foretune.reports.plan_figure import Chart

VERDICTS: tuple[Verdict, ...] = ("fits", "tight", "does not fit")
SYMBOLS: Mapping[str, str] = {"fits": "✓", "tight": "≈", "does not fit": "✕"}
MOST_NAMES = 5
"""More devices than that are counted, not named."""


@dataclass(frozen=True)
class Question:
    """Plans of one experiment and model, from the device with the least memory to the one with the most."""

    plans: tuple[Plan, ...]
    choices: str | None
    """The experiment in words, where they are given."""
    key: str
    """Its id on the page."""

    @property
    def model(self) -> str:
        return self.plans[0].model

    @property
    def need_bytes(self) -> int:
        """The most that the process likely takes on any of the devices."""
        return max(plan.process_bytes for plan in self.plans)

    @property
    def footprints(self) -> list[tuple[Plan, ...]]:
        """Plans with the same phases; as a rule that is all of them."""
        by_phases: dict[str, list[Plan]] = {}
        for plan in self.plans:
            by_phases.setdefault(repr((plan.phases, plan.worst_phase)), []).append(plan)
        return [tuple(plans) for plans in by_phases.values()]


def questions(plans: Iterable[Plan], choices: Mapping[str, str]) -> list[Question]:
    """One for each experiment and model, from the one that needs least to the one that needs most."""
    ordered = sorted(plans, key=lambda plan: (plan.experiment, plan.model))
    groups = [
        tuple(sorted(group, key=lambda plan: (plan.usable_bytes, plan.device, plan.world_size)))
        for _, group in groupby(ordered, key=lambda plan: (plan.experiment, plan.model))
    ]
    groups.sort(key=lambda group: (max(plan.process_bytes for plan in group), group[0].model, group[0].experiment))
    return [Question(group, choices.get(group[0].experiment), f"plan-{i}") for i, group in enumerate(groups, start=1)]


def device_title(plan: Plan) -> str:
    """As the catalogue shows it; with several processes, how many."""
    known = catalog.devices().get(plan.device)
    title = plan.device if known is None else known.title
    are_named_each = plan.world_size == 1 or "+" in plan.device
    return title if are_named_each else f"{plan.world_size} × {title}"


def chart_of(plans: Sequence[Plan], classes: Mapping[str, str]) -> Chart:
    """The drawing's figures, from plans with the same phases."""
    parts = {part for phase in plans[0].phases for part in phase.device_bytes_by_part}
    likely = [plan.process_bytes for plan in plans]
    return Chart(
        phases=plans[0].phases,
        worst_phase=plans[0].worst_phase,
        lines=tuple(_line(plan) for plan in plans),
        process_likely=(min(likely), max(likely)),
        process_band=(min(p.process_low_bytes for p in plans), max(p.process_high_bytes for p in plans)),
        classes={part: name for part, name in classes.items() if part in parts},
    )


def worst_of(plan: Plan) -> PhaseMemory:
    return next(phase for phase in plan.phases if phase.phase == plan.worst_phase)


def size_words(plan: Plan) -> str:
    """1 image of 1024 × 1024 px a step, captions of 512 tokens."""
    sizes = plan.sizes
    batch, frames = sizes.get("batch_size", 1), sizes.get("num_frames", 1)
    what = "video" if frames > 1 else "image"
    words = f"{batch} {what}{'' if batch == 1 else 's'}"
    if "height_px" in sizes and "width_px" in sizes:
        words += f" of {sizes['height_px']}\u00a0×\u00a0{sizes['width_px']}\u00a0px"
    if frames > 1:
        words += f" and {frames} frames"
    words += " at a time"
    tokens = sizes.get("num_text_tokens", 0)
    return words + (f", captions of {tokens} tokens" if tokens else "")


def answer_words(question: Question) -> list[tuple[Verdict, str]]:
    """For each verdict that was given: Fits on L40S and H100 SXM."""
    said: list[tuple[Verdict, str]] = []
    for verdict in VERDICTS:
        plans = [plan for plan in question.plans if plan.verdict == verdict]
        if plans:
            said.append((verdict, f"{verdict.capitalize()} on {_devices_words(plans, verdict)}."))
    return said


def listed(words: Sequence[str]) -> str:
    """A, B and C."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _devices_words(plans: Sequence[Plan], verdict: Verdict) -> str:
    if len(plans) <= MOST_NAMES:
        return listed([device_title(plan) for plan in plans])
    smallest, largest = device_title(plans[0]), device_title(plans[-1])
    if verdict == "fits":
        return f"{len(plans)} devices; the smallest is {smallest}, with {bytes_text(plans[0].usable_bytes)} usable"
    return f"{len(plans)} devices; the largest is {largest}, with {bytes_text(plans[-1].usable_bytes)} usable"


def _line(plan: Plan) -> DeviceLine:
    known = catalog.devices().get(plan.device)
    sold_gb = None if known is None else known.memory_gb / known.num_logical_devices
    return DeviceLine(title=device_title(plan), usable_bytes=plan.usable_bytes, memory_gb=sold_gb)
