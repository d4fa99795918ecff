"""Writes docs/models/: for each family that can be trained, what its models need on common cards and how to start.

python benchmarks/model_pages.py          all pages
python benchmarks/model_pages.py flux     one page
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

import foretune as ft
from foretune import catalog
from foretune.catalog import TRAINABLE, ModelComponent
from foretune.config.starting import starting_text
from foretune.config.yaml_files import parse
from foretune.core.errors import ExperimentErrors
from foretune.core.units import count_text, memory_text
from foretune.core.values.plan import Plan
from foretune.core.vocabulary import RunPhase

DOCS = Path(__file__).parents[1] / "docs"
NOTES = DOCS / "data" / "model_notes.yaml"
FOLDER = DOCS / "models"
CARDS = {"12 GB": "rtx-3060", "16 GB": "rtx-4080", "24 GB": "rtx-4090", "48 GB": "l40s", "80 GB": "h100-sxm"}
QUESTIONS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "LoRA, rank 16": ("lora", {}),
    "LoRA, rank 16, base in nf4": ("lora", {"quantize.denoiser": "nf4"}),
    "all weights, AdamW": ("full", {}),
    "all weights, 8-bit AdamW": ("full", {"optimizer.kind": "adamw8bit"}),
}
_SIGNS = {"fits": "fits", "tight": "tight", "does not fit": "no"}
_DATA = "./photos"
_CHANGES = " [`objective`](../keys/objective.md) changes it."
_MEMORY = """The experiment that `foretune init` writes, with each method. The peak is that of the process on an H100;
verdicts are for an RTX 3060, RTX 4080, RTX 4090, L40S and H100. Where the peak is not in the training step, its phase
is named; `quantize.text_encoders=int8` lowers that of caching text. `foretune plan` says what makes it fit.
"""


def load_notes() -> dict[str, Any]:
    notes: dict[str, Any] = yaml.safe_load(NOTES.read_text(encoding="utf-8"))
    return notes


def models_of(family: str) -> tuple[ModelComponent, ...]:
    """The catalogue's models of a family that can be trained, the smallest first."""
    left_out = TRAINABLE[family].untrainable_models
    found = [row for row in catalog.denoisers().values() if row.family == family and row.name not in left_out]
    return tuple(sorted(found, key=lambda row: row.num_params))


def page(family: str, note: Mapping[str, Any]) -> str:
    """The whole page of one family."""
    models = models_of(family)
    # One that is distilled to few steps is not what one starts from.
    first = min(models, key=lambda row: row.distillation == "timestep").name
    parts = [
        f"# {note['title']}\n",
        "\n".join(_model_line(row) for row in models) + "\n",
        f"```bash\nforetune plan {first} method.kind=lora --on rtx-4090\n{_init_command(family, first)}\n```\n",
        "## Memory\n",
        _MEMORY,
        memory_table(models),
        f"## To start from\n\n```yaml\n{_starting(family, first, 'lora')}```\n",
        f"## Objective\n\n{note['objective']}{_CHANGES if TRAINABLE[family].is_flow_matching else ''}\n",
        "## What to know\n\n" + "\n".join(f"- {line}" for line in note["notes"]) + "\n",
    ]
    return "\n".join(parts)


def memory_table(models: Sequence[ModelComponent]) -> str:
    """One line for each model and method that is not refused."""
    lines = [f"| model | method | peak | {' | '.join(CARDS)} |", f"|---|---|---:|{'---|' * len(CARDS)}"]
    for row in models:
        for name, plans in _plans(row).items():
            signs = " | ".join(_SIGNS[plan.verdict] for plan in plans)
            lines.append(f"| {row.name} | {name} | {_peak(plans[-1])} | {signs} |")
    return "\n".join(lines) + "\n"


def _peak(plan: Plan) -> str:
    phase = "" if plan.worst_phase == RunPhase.STEP else f" ({plan.worst_phase})"
    return memory_text(plan.process_bytes) + phase


def _plans(row: ModelComponent) -> dict[str, tuple[Plan, ...]]:
    assert row.family is not None
    found = {}
    for name, (method, changes) in QUESTIONS.items():
        asked = parse(_starting(row.family, row.name, method))
        with suppress(ExperimentErrors):  # such as all weights of a distilled model, which is refused
            found[name] = tuple(ft.plan(asked, changes, on=list(CARDS.values()), advice="none"))
    return found


def _model_line(row: ModelComponent) -> str:
    licence = catalog.licences().get(row.hub_repo or "")
    facts = [f"{count_text(row.num_params)} weights", f"`{row.hub_repo}`"]
    if licence is not None and licence.licence is not None:
        facts.append(f"licence {licence.licence}")
    if licence is not None and licence.is_gated:
        facts.append("gated")
    if row.distillation not in (None, "none"):
        facts.append(f"{row.distillation}-distilled")
    return f"- `{row.name}`: {', '.join(facts)}"


def _init_command(family: str, model: str) -> str:
    return f"foretune init {family}.yaml --model {model} --data {_data(family)}"


def _data(family: str) -> str:
    return "./clips" if TRAINABLE[family].is_video else _DATA


def _starting(family: str, model: str, method: str) -> str:
    return starting_text(f"{family}.yaml", model, method, _data(family), family=family)


def index(notes: Mapping[str, Any]) -> str:
    """The list of all pages."""
    lines = ["# Models", "", "Families that can be trained, sampled and exported:", ""]
    for family in TRAINABLE:
        names = ", ".join(f"`{row.name}`" for row in models_of(family))
        lines.append(f"- [{notes[family]['title']}]({family}.md): {names}")
    trained = {row.name for family in TRAINABLE for row in models_of(family)}
    others = sorted(set(catalog.denoisers()) - trained)
    lines += ["", f"These can be planned, not trained: {', '.join(f'`{name}`' for name in others)}."]
    lines += ["", "`foretune list models` prints all of them. `python benchmarks/model_pages.py` writes these pages."]
    return "\n".join(lines) + "\n"


def main(names: Sequence[str]) -> None:
    notes = load_notes()
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "index.md").write_text(index(notes), encoding="utf-8")
    for family in names or TRAINABLE:
        (FOLDER / f"{family}.md").write_text(page(family, notes[family]), encoding="utf-8")
        sys.stdout.write(f"docs/models/{family}.md\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
