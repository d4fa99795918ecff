"""Writes docs/practitioners.md: what `foretune plan` answers to practitioners' questions, beside what guides recommend.

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

What `foretune plan` answers first, beside what the guides of SimpleTuner, ai-toolkit, kohya's sd-scripts and
musubi-tuner, OneTrainer, finetrainers, diffusion-pipe and diffusers recommend for a card of that size. The answers on
this page are written by `python benchmarks/practitioners.py`, and a test computes them again. The guides' settings are
facts from the cited files, at the commits listed [below](#sources); their memory figures are theirs, in their units,
for their programs.

"""


def load() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(QUESTIONS.read_text(encoding="utf-8"))
    return data


def answer(question: Mapping[str, Any]) -> Plan:
    """The plan of a question on the card of its size."""
    ask = dict(question["ask"])
    sizes = {name: ask.pop(name, None) for name in _SIZES}
    wanted = Wanted(
        target=ask.pop("model"),
        overrides=tuple(f"{key}={value}" for key, value in ask.items()),
        height_px=sizes["height"],
        width_px=sizes["width"],
        num_frames=sizes["frames"],
    )
    ((_, (plan,)),) = plan_everything(wanted, devices_named(CARDS[question["card_gib"]]), None)
    return plan


def command(question: Mapping[str, Any]) -> str:
    """What a practitioner types."""
    ask = dict(question["ask"])
    options = [f"--{name} {ask.pop(name)}" for name in _SIZES if name in ask]
    model = ask.pop("model")
    keys = [f"{key}={value}" for key, value in ask.items()]
    return " ".join(["foretune plan", model, *keys, *options, "--on", CARDS[question["card_gib"]]])


def first_line(plan: Plan) -> str:
    """The verdict, and the first thing to do."""
    if plan.verdict == "fits":
        return f"fits: {memory_text(plan.process_bytes)} of {memory_text(plan.usable_bytes)}"
    if plan.remedies:
        first = plan.remedies[0]
        assert first.process_bytes is not None, "a plan that was just made knows it"
        return f"`{settings_text(first.settings)}`: {memory_text(first.process_bytes)}"
    return f"{plan.verdict}; a larger card: {plan.smallest_device}"


def other_lines(plan: Plan) -> str:
    lines = [
        f"`{settings_text(remedy.settings)}` ({memory_text(remedy.process_bytes or 0)})" for remedy in plan.remedies[1:]
    ]
    if plan.smallest_device is not None:
        lines.append(plan.smallest_device)
    return "; then ".join(lines)


def _section(question: Mapping[str, Any], plan: Plan) -> str:
    rows = [f"| **foretune** | {first_line(plan)} | |"]
    for guide in question["guides"]:
        settings = ", ".join(f"{key} {value}" for key, value in guide["settings"].items())
        memory = f". {guide['memory']}" if guide["memory"] else ""
        rows.append(f"| {guide['program']} | {settings}{memory} | {guide['source']}, {guide['where']} |")
    others = other_lines(plan)
    parts = [
        f"## {question['title']}\n",
        f"```text\n{command(question)}\n```\n",
        "| who | answer | where |\n|---|---|---|",
        "\n".join(rows) + "\n",
        f"Further options: {others}.\n" if others else "",
        f"{question['comparison']}\n",
    ]
    return "\n".join(part for part in parts if part)


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
