"""Writes docs/practitioners.md: what `foretune plan` suggests, beside what the guides of other trainers recommend.

python benchmarks/practitioners.py                 all questions, into docs/practitioners.md
python benchmarks/practitioners.py flux-dev-lora-12   one answer, to the terminal
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from foretune.core.units import memory_text
from foretune.core.values.plan import Plan
from foretune.planner.asking import Wanted, devices_named, plan_everything
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
    48: "l40s",
    80: "h100-sxm",
}
_SIZES = ("height", "width", "frames")

_HEAD = """# Questions of practitioners

What `foretune plan` suggests for a model on a card, and what the guides of other trainers set there. Left out are
settings that a guide does not state or that are Foretune's own defaults: gradient checkpointing, cached latents and
text, batch size 1, rank 16, AdamW. In brackets is the memory that a guide reports, in its own unit.
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
    wanted = Wanted(target=question["ask"]["model"], overrides=_settings(question))
    ((_, (plan,)),) = plan_everything(wanted, devices_named(CARDS[question["card_gib"]]), None)
    return plan


def command(question: Mapping[str, Any]) -> str:
    """What a practitioner types."""
    typed = ["foretune plan", question["ask"]["model"], *_settings(question), "--on", CARDS[question["card_gib"]]]
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
    figure = (guide["memory"] or "").partition(";")[0]
    return f"- {guide['program']}: {', '.join(settings)}{f' ({figure})' if figure else ''}"


def _section(question: Mapping[str, Any], plan: Plan) -> str:
    others = other_lines(plan)
    parts = [
        f"## {question['title']}\n",
        f"```text\n{command(question)}\n```\n",
        f"{answer_line(plan)}\n",
        f"Further options: {others}.\n" if others else "",
        f"{question['comparison']}\n",
        *(_guide_line(guide) for guide in question["guides"]),
    ]
    return "\n".join(part for part in parts if part) + ("\n" if question["guides"] else "")


def page(data: Mapping[str, Any], plans: Sequence[Plan]) -> str:
    sections = [_section(question, plan) for question, plan in zip(data["questions"], plans, strict=True)]
    sources = [
        f"| {name} | {row['repository']} | {row['commit'] or 'not known'} | {row['date']} |"
        for name, row in data["sources"].items()
    ]
    table = "\n".join(["| name here | repository | commit | date |", "|---|---|---|---|", *sources])
    return f"{_HEAD}{chr(10).join(sections)}\n## Sources\n\n{table}\n"


def main(names: Sequence[str]) -> int:
    data = load()
    if names:
        for question in data["questions"]:
            if question["id"] in names:
                plan = answer(question)
                print(command(question), first_line(plan), other_lines(plan), sep="\n  ")
        return 0
    plans = [answer(question) for question in data["questions"]]
    PAGE.write_text(page(data, plans), encoding="utf-8")
    print(f"Wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
