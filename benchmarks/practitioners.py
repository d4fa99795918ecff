"""Writes docs/practitioners.md: what `foretune plan` suggests, beside what the guides of other trainers recommend.

python benchmarks/practitioners.py                 all questions, into docs/practitioners.md
python benchmarks/practitioners.py flux-dev-lora-12   one answer, to the terminal
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from foretune.core.units import duration_text, memory_text, rate_text, usd_text
from foretune.core.values.plan import Plan
from foretune.planner.asking import AdviceScope, PlanRequest, devices_named, plan_everything
from foretune.planner.knobs import EXPANDABLE
from foretune.planner.search.asking import search_question, sought_of
from foretune.planner.search.searching import Choice
from foretune.reports.remedy_words import settings_text

DOCS = Path(__file__).parents[1] / "docs"
QUESTIONS = DOCS / "data" / "practitioner_questions.yaml"
PAGE = DOCS / "practitioners.md"
# A card that people have, for each size of memory.
CARDS = {
    6: "6GB",
    8: "8GB",
    12: "rtx-3060",
    16: "rtx-4080",
    24: "rtx-4090",
    32: "rtx-5090",
    48: "l40s",
    80: "h100-sxm",
}
_SIZES = ("height", "width", "frames")

_HEAD = """# Questions of practitioners

What `foretune plan` suggests for a model on a card, and what the guides of other trainers set there. Left out are
settings that a guide does not state or that are Foretune's own defaults: gradient checkpointing, cached latents and
text, batch size 1, rank 16, AdamW. In brackets is the memory that a guide reports, in its own unit, and its speed.

A job is 1,000 steps of four samples with 1,024 images or clips to cache, unless the command or the option says
otherwise; it includes set-up, download, caching and validation, at the catalogue's price of the card.
[Step times](step-times.md) says how far off such times are.

[practitioner_questions.yaml](data/practitioner_questions.yaml) has all settings and figures with file and line, read at
the commits [below](#sources). `python benchmarks/practitioners.py` writes this page, and a test checks the plans.

"""
_USUAL: dict[str, object] = {
    "gradient_checkpointing": True,
    "cache_text": True,
    "cache_latents": True,
    "batch_size": 1,
    "rank": 16,
    "optimizer": "adamw",
    "block_swap": 0,
    "offload_fraction": 0,
}
"""Settings of a guide that the page does not repeat: Foretune's own defaults."""


def load() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(QUESTIONS.read_text(encoding="utf-8"))
    return data


def answer(question: Mapping[str, Any]) -> Plan:
    """The plan of a question on the card of its size."""
    return _plan(question, (), "menu")


def first_option(question: Mapping[str, Any], plan: Plan) -> Plan:
    """The plan with the first remedy, of which the time is reported; the plan itself if it fits."""
    if plan.verdict == "fits" or not plan.remedies:
        return plan
    settings = {key: value for key, value in plan.remedies[0].settings.items() if key != EXPANDABLE}
    return _plan(question, tuple(f"{key}={value}" for key, value in settings.items()), "none")


def _plan(question: Mapping[str, Any], more: tuple[str, ...], advice: AdviceScope) -> Plan:
    request = PlanRequest(target=question["ask"]["model"], overrides=(*_settings(question), *more), advice=advice)
    ((_, (plan,)),) = plan_everything(request, devices_named(card(question)), None)
    return plan


def recommended(question: Mapping[str, Any]) -> tuple[Choice, Choice | None]:
    """The best settings and device of a question with a goal, and the runner-up."""
    request = PlanRequest(target=question["ask"]["model"], overrides=_settings(question))
    sought = sought_of(request, goal=question["goal"], deadline=question["deadline"])
    _, found = search_question(request, sought, devices_named(card(question)), None)
    return found.best, found.runner_up


def card(question: Mapping[str, Any]) -> str:
    """What stands behind `--on`."""
    return str(question.get("devices") or CARDS[question["card_gib"]])


def command(question: Mapping[str, Any]) -> str:
    """What a practitioner types."""
    typed = ["foretune plan", question["ask"]["model"], *_settings(question), "--on", card(question)]
    if "goal" in question:
        typed += ["--goal", question["goal"], "--deadline", question["deadline"]]
    return " ".join(typed)


def _settings(question: Mapping[str, Any]) -> tuple[str, ...]:
    """What a question asks for besides the model, as a user types it."""
    ask = dict(question["ask"])
    ask.pop("model")
    height_px, width_px, num_frames = (ask.pop(name, None) for name in _SIZES)
    keys = [f"{key}={value}" for key, value in ask.items()]
    if height_px is not None:
        keys.append(f"data.resolution={width_px}x{height_px}")
    if num_frames is not None:
        keys.append(f"data.num_frames={num_frames}")
    return tuple(keys)


def first_line(plan: Plan) -> str:
    """The verdict, and the first thing to do."""
    if plan.verdict == "fits":
        return f"fits: {memory_text(plan.process_bytes)} of {memory_text(plan.usable_bytes)}"
    if plan.remedies:
        first = plan.remedies[0]
        assert first.process_bytes is not None, "a plan that was just made knows it"
        return f"`{settings_text(first.settings)}`: {memory_text(first.process_bytes)}"
    return f"{plan.verdict}; a larger card: {plan.smallest_device}"


def answer_line(plan: Plan) -> str:
    """The line of the page with the plan's first option."""
    return f"**Foretune**: {first_line(plan)}."


def time_line(plan: Plan) -> str:
    """The time of a sample, and time and price of the job."""
    if plan.time is None:
        return f"No step time, not known: {plan.no_time}."
    words = [rate_text(plan.time.samples_per_s, "sample")]
    if plan.cost is not None:
        words.append(f"the job {duration_text(plan.cost.total_s)}")
        words += [] if plan.cost.usd is None else [usd_text(plan.cost.usd)]
    return f"Time: {', '.join(words)}."


def choice_lines(best: Choice, runner_up: Choice | None) -> tuple[str, ...]:
    """The lines of the page with what a search recommends."""

    def words(choice: Choice) -> str:
        settings = settings_text(choice.words)
        return f"{choice.plan.device} with `{settings}` ({memory_text(choice.plan.process_bytes)})"

    first = f"**Foretune**: {words(best)}. {time_line(best.plan)}"
    return (first,) if runner_up is None else (first, f"Runner-up: {words(runner_up)}. {time_line(runner_up.plan)}")


def other_lines(plan: Plan) -> str:
    lines = [
        f"`{settings_text(remedy.settings)}` ({memory_text(remedy.process_bytes or 0)}"
        f"{'' if remedy.verdict == 'fits' else ', if no desktop uses the card'})"
        for remedy in plan.remedies[1:]
    ]
    if plan.smallest_device is not None:
        lines.append(plan.smallest_device)
    return "; then ".join(lines)


def _setting_text(key: str, value: object) -> str:
    words = key.replace("_", " ")
    if isinstance(value, bool):
        return words if value else f"no {words}"
    if key == "optimizer":
        return str(value)
    return f"{value} {words}" if key in ("base", "weights") else f"{words} {value}"


def _guide_line(guide: Mapping[str, Any]) -> str:
    """What the guide sets beside the usual, and the first of the figures that it reports."""
    settings = [_setting_text(key, value) for key, value in guide["settings"].items() if _USUAL.get(key) != value]
    figures = [(guide["memory"] or "").partition(";")[0], guide.get("speed") or ""]
    figure = "; ".join(one for one in figures if one)
    return f"- {guide['program']}: {', '.join(settings)}{f' ({figure})' if figure else ''}"


def answer_lines(question: Mapping[str, Any]) -> list[str]:
    """What Foretune answers, in paragraphs of the page."""
    if "goal" in question:
        return [f"{line}\n" for line in choice_lines(*recommended(question))]
    plan = answer(question)
    others = other_lines(plan)
    lines = [f"{answer_line(plan)} {time_line(first_option(question, plan))}\n"]
    return [*lines, f"Further options: {others}.\n"] if others else lines


def _section(question: Mapping[str, Any], answers: Sequence[str]) -> str:
    parts = [
        f"## {question['title']}\n",
        f"```text\n{command(question)}\n```\n",
        *answers,
        f"{question['comparison']}\n",
        *(_guide_line(guide) for guide in question["guides"]),
    ]
    return "\n".join(parts) + ("\n" if question["guides"] else "")


def page(data: Mapping[str, Any], answers: Sequence[Sequence[str]]) -> str:
    sections = [_section(question, lines) for question, lines in zip(data["questions"], answers, strict=True)]
    sources = [
        f"| {name} | {row['repository']} | {row['commit'] or 'not known'} | {row['date']} |"
        for name, row in data["sources"].items()
    ]
    table = "\n".join(["| name here | repository | commit | date |", "|---|---|---|---|", *sources])
    return f"{_HEAD}{chr(10).join(sections)}\n## Sources\n\n{table}\n"


def main(names: Sequence[str]) -> int:
    data = load()
    chosen = [question for question in data["questions"] if not names or question["id"] in names]
    answers = []
    for number, question in enumerate(chosen, start=1):
        print(f"{number}/{len(chosen)}", command(question), flush=True)
        answers.append(answer_lines(question))
        print(*answers[-1], sep="", flush=True)
    if names:
        return 0
    PAGE.write_text(page(data, answers), encoding="utf-8")
    print(f"Wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
