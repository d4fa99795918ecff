"""Makes what ships: `python -m tools.shipping`. Every trace is made from the training step itself.

python -m tools.shipping              everything that is missing, recipes included
python -m tools.shipping --remake     everything again
python -m tools.shipping flux.1-dev   one model's again
python -m tools.shipping --without-shapes   again what has no step time yet: traces without shapes of work
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Literal, Required, TypedDict

from foretune import catalog
from foretune.backtests.questions import BacktestQuestion
from foretune.backtests.rows import is_exact, question
from foretune.catalog import ModelComponent
from foretune.choices.forward_form import ForwardForm
from foretune.choices.step_form import StepForm
from foretune.core.values.packed_trace import pack
from foretune.core.values.recipes import Recipes
from foretune.core.values.step_trace import StepTrace
from foretune.models.locating import family_from_catalogue
from foretune.planner.sizing import with_default_targets
from foretune.trace.forward import forward_forms, make_forward_trace
from foretune.trace.geometry import geometry_of
from foretune.trace.making import habits_of, make_step_trace
from foretune.trace.marking import make_marked_trace
from foretune.trace.program import IrregularStep
from foretune.trace.recipes import recipe_names, record_recipes
from foretune.trace.shapes import with_shapes
from foretune.trace.shipped import GEOMETRY_FILE, MARKED, RECIPES_FILE, SUFFIX, read_trace
from foretune.trace.stamps import model_hash, sources_hash
from tools.same_memory import memory_differences

# Models below this size are trained in fp32 too; for larger ones that is rare, and recorded when asked for.
_MOST_PARAMS_FP32 = 1_000_000_000


class _Choices(TypedDict, total=False):
    """What the forms of a group have in common."""

    method: Required[Literal["full", "lora", "dora", "lokr"]]
    precision: Literal["fp32", "bf16"]
    weights: Literal["fp32", "bf16"]
    compensation: Literal["none", "kahan"]
    has_dropout: bool
    others: tuple[tuple[str, bool], ...]


# Choices that change what each layer keeps, so that no trace can be composed for them. One at a time.
_RECORDED_CHOICES: tuple[_Choices, ...] = (
    {"method": "lora", "has_dropout": True},
    {"method": "lora", "others": (("levers.activation_offload", True),)},
    {"method": "dora"},
    {"method": "lokr"},
)


def shipped_forms() -> tuple[StepForm, ...]:
    """The common methods, precisions and checkpointing of every denoiser, and the forms of the backtest."""
    rows = list(catalog.denoisers().values())
    transformers = [row for row in rows if not row.family_facts.is_unet]
    unets = [row for row in rows if row.family_facts.is_unet]
    # Of what can be trained today: everything in bf16, for what does not fit with fp32 states; and fp32 where models
    # are small enough that people use it.
    in_bf16: _Choices = {"method": "full", "weights": "bf16", "compensation": "kahan"}
    # Of bf16 weights any optimizer is made from a trace with one of them (`plan.composing`).
    plain_bf16: _Choices = {"method": "full", "weights": "bf16"}
    others = [row for row in transformers if not row.family_facts.is_trainable]
    trained = [row for row in transformers if row.family_facts.is_trainable]
    small = [row for row in rows if row.family_facts.is_trainable and row.num_params < _MOST_PARAMS_FP32]
    of_backtest = backtest_forms()
    forms = [
        *(form for form in of_backtest if not catalog.denoiser(form.model).family_facts.is_unet),
        *_both(transformers, {"method": "lora"}),
        *_both(transformers, {"method": "full"}),
        *_both(trained, in_bf16),
        *_both(others, plain_bf16),
        *_both(small, {"method": "lora", "precision": "fp32"}),
        *_both(small, {"method": "full", "precision": "fp32"}),
        *_recorded(transformers),
        # They have no equal blocks to fold, so that each takes minutes.
        *_both(unets, {"method": "lora"}),
        *_both(unets, {"method": "full"}),
        *_both(unets, plain_bf16),
        *_recorded(unets),
        *of_backtest,
    ]
    return tuple(dict.fromkeys(forms))


def marked_forms() -> tuple[StepForm, ...]:
    """Those that quantised bases are put into."""
    return tuple(_both(catalog.denoisers().values(), {"method": "lora"}))


def backtest_forms() -> tuple[StepForm, ...]:
    """The forms of the catalogue's published rows, so that `foretune backtest` needs no torch."""
    forms: dict[StepForm, None] = {}
    # Built once for each model, not for each row: a UNet takes a second.
    geometry = cache(lambda model: geometry_of(family_from_catalogue(model)))
    # Those of rows with an exact peak first: the others tell only whether it ran.
    for row in sorted(catalog.measurements().values(), key=is_exact, reverse=True):
        asked = question(row)
        if isinstance(asked, BacktestQuestion):
            experiment = with_default_targets(asked.experiment, geometry(asked.model))
            levers = experiment.levers
            # Of segments with a stride some blocks are kept, whatever the share.
            keeps_some = levers.gradient_checkpointing < 1 or levers.checkpoint_stride is not None
            for is_checkpointed in sorted({levers.gradient_checkpointing > 0, not keeps_some}):
                form = StepForm.of(experiment, is_checkpointed=is_checkpointed, habits=asked.dialect.habits)
                if form.precision == "fp16":
                    form = replace(form, precision="bf16")  # the nearest, which plans use
                # Uncommon forms ship for an exact peak: a row that only ran tells too little for the bytes.
                if not form.others or is_exact(row):
                    forms[form] = None
    return tuple(forms)


def _recorded(rows: Iterable[ModelComponent]) -> Iterator[StepForm]:
    """With gradient checkpointing as in `config.starting`: on all blocks, and for small models also without."""
    for choices in _RECORDED_CHOICES:
        for row in rows:
            yield StepForm(model=row.name, is_checkpointed=True, **choices)
            if row.family_facts.is_small:
                yield StepForm(model=row.name, is_checkpointed=False, **choices)


def _both(rows: Iterable[ModelComponent], choices: _Choices) -> Iterator[StepForm]:
    for row in rows:
        for is_checkpointed in (True, False):
            yield StepForm(model=row.name, is_checkpointed=is_checkpointed, **choices)


@dataclass(frozen=True)
class TraceJob:
    """One trace to make."""

    model: str
    slug: str
    make: Callable[[], StepTrace]


def all_jobs() -> tuple[TraceJob, ...]:
    """Everything that ships: steps, and the passes around them."""
    return (
        *(TraceJob(form.component, form.slug(), partial(make_forward, form)) for form in forward_forms()),
        *(TraceJob(form.model, form.slug(), partial(make, form)) for form in shipped_forms()),
        *(TraceJob(form.model, form.slug() + MARKED, partial(make_marked, form)) for form in marked_forms()),
    )


def make(form: StepForm) -> StepTrace:
    """The trace of a step with the shapes of what it trains, stamped with what it was made from."""
    experiment, family = form.experiment(), family_from_catalogue(form.model)
    with habits_of(form):
        made = make_step_trace(experiment, family, form.numerics)
    return _stamped(with_shapes(made, experiment, family), form.model)


def make_marked(form: StepForm) -> StepTrace:
    """The same step with marks: where products are made, and where gradients arrive."""
    known = read_trace(form.slug())
    if known is None:
        known = make(form)
    return _stamped(make_marked_trace(form, family_from_catalogue(form.model), known), form.model)


def make_forward(form: ForwardForm) -> StepTrace:
    """The trace of a pass around it."""
    return _stamped(make_forward_trace(form), form.component)


def without_shapes(jobs: Iterable[TraceJob]) -> list[TraceJob]:
    """Those whose traces ship without shapes of their products, so that no step is timed with them.

    A sampling denoiser has none in any case: its step's trace has its work. Models that can be trained come before
    those that can only be planned. Then LoRA (also with marks for quantised bases) and full fine-tuning come before
    their variants; DoRA and LoKr come last.
    """
    missing = [job for job in jobs if ".sample." not in job.slug and _lacks_shapes(read_trace(job.slug))]
    return sorted(missing, key=_use_order)


def _lacks_shapes(trace: StepTrace | None) -> bool:
    return trace is None or not any(work.shape for work in trace.work)


def _use_order(job: TraceJob) -> tuple[bool, bool, bool, bool]:
    is_plain = not any(f".{other}" in job.slug for other in ("dropout", "activation-offload"))
    is_rare = any(f".{method}." in job.slug for method in ("dora", "lokr"))
    return is_rare, not catalog.denoiser(job.model).family_facts.is_trainable, not is_plain, ".lora." not in job.slug


def _stamped(trace: StepTrace, model: str) -> StepTrace:
    return trace.model_copy(update={"made_from": f"{model_hash(model)}-{sources_hash()}"})


def write_geometry(folder: Path) -> None:
    rows = {name: geometry_of(family_from_catalogue(name)).model_dump() for name in catalog.denoisers()}
    (folder / GEOMETRY_FILE).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def write_recipes(path: Path, *, remake: bool) -> None:
    """Records the recipes that are missing in the file, or all of them."""
    known = Recipes(updates={}, layers={})
    if path.exists() and not remake:
        known = Recipes.model_validate_json(path.read_bytes())
    missing = [name for name in recipe_names() if name not in known.updates and name not in known.layers]
    if missing:
        made = record_recipes(missing)
        found = Recipes(updates={**known.updates, **made.updates}, layers={**known.layers, **made.layers})
        path.write_text(found.model_dump_json(exclude_defaults=True) + "\n", encoding="utf-8")


def _store(job: TraceJob, path: Path) -> str:
    """Makes a trace and writes it. Returns its size, and how its memory differs from the one it replaces."""
    replaced, made = read_trace(job.slug), job.make()
    path.write_bytes(pack(made))
    unlike = () if replaced is None else memory_differences(replaced, made)
    return "; ".join([f"{path.stat().st_size} B", *(f"MEMORY CHANGED: {text}" for text in unlike)])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.shipping", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these models or traces, even if they are there already")
    parser.add_argument("--remake", action="store_true", help="also what is there already")
    parser.add_argument("--last-first", action="store_true", help="from the end: a second process meets the first")
    parser.add_argument(
        "--without-shapes", action="store_true", help="only what ships without shapes of products, most used first"
    )
    asked = parser.parse_args(arguments)
    folder = Path(str(files("foretune.trace"))) / "data"
    folder.mkdir(exist_ok=True)
    write_geometry(folder)
    write_recipes(folder / RECIPES_FILE, remake=asked.remake)
    failed: list[str] = []
    known = all_jobs()
    if unknown := set(asked.names) - {name for job in known for name in (job.model, job.slug)}:
        parser.error(f"neither a model nor a trace that ships: {', '.join(sorted(unknown))}")
    jobs = [job for job in known if not asked.names or {job.model, job.slug} & set(asked.names)]
    if asked.without_shapes:
        jobs = without_shapes(jobs)
    for number, job in enumerate(reversed(jobs) if asked.last_first else jobs, start=1):
        path = folder / f"{job.slug}{SUFFIX}"
        if path.exists() and not (asked.remake or asked.names or asked.without_shapes):
            continue
        start = time.monotonic()
        try:
            said = _store(job, path)
        except IrregularStep as error:
            failed.append(job.slug)
            said = f"FAILED: {error}"
        sys.stdout.write(f"{number}/{len(jobs)}  {job.slug}  {said}  {time.monotonic() - start:.1f} s\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
