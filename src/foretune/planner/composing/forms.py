"""Which steps can be composed from shipped traces, and how."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from foretune.choices.step_form import NO_HABITS, StepForm, update_name
from foretune.core.values.step_trace import StepTrace
from foretune.core.vocabulary import StepPhase
from foretune.planner.composing.pieces import Composer
from foretune.planner.composing.quantising import quantise
from foretune.planner.composing.updates import OptimizerReplacement
from foretune.trace.shipped import MARKED, is_shipped, read_trace, recipes

_WEIGHT_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class Composition:
    """A shipped trace, and what is added to it."""

    body: str
    """Name of the trace of forward and backward pass."""
    update: str
    """Name of the optimizer's recipe."""
    is_fused: bool
    layer: str | None
    """Quantisation of the frozen base."""
    bytes_per_weight: int
    is_full: bool


@lru_cache(maxsize=512)
def composition_of(form: StepForm) -> Composition | None:
    """Returns how to compose a step; None if a part of it is neither shipped nor composable. Reads no trace."""
    others = dict(form.others)
    kind = others.pop("optimizer.kind", "adamw")
    on_host, is_fused = (others.pop(f"levers.{name}", False) for name in ("optimizer_offload", "fused_backward"))
    layer = others.pop("quantize.denoiser", None)
    # The two differ only by a factor.
    method = "lora" if form.method == "rslora" else form.method
    update = update_name(kind, form.compensation, form.weights, on_host=on_host)
    is_known = update in recipes().updates and (layer is None or (layer in recipes().layers and method == "lora"))
    if form.numerics != "cuda" or not is_known or (layer is not None and form.precision != "bf16"):
        return None
    for compensation in ("none", "kahan") if form.weights == "bf16" else ("none",):
        plain = replace(form, method=method, compensation=compensation, others=tuple(sorted(others.items()))).slug()
        # Only a marked trace shows where products are. For a fused backward pass its arrivals of gradients are exact.
        slugs = (plain + MARKED,) if layer else (plain + MARKED, plain) if is_fused else (plain, plain + MARKED)
        for slug in slugs:
            if is_shipped(slug):
                return Composition(slug, update, bool(is_fused), layer, _WEIGHT_BYTES[form.weights], method == "full")
    return None


def composed_layer(form: StepForm) -> str | None:
    """Returns the quantisation that composing puts into a trace whose work has dense products."""
    composition = None if is_shipped(form.slug()) else composition_of(form)
    return None if composition is None else composition.layer


def composed_trace(composition: Composition) -> StepTrace:
    """Returns the trace of a step that was not recorded."""
    composer = Composer(_body(composition.body))
    update = OptimizerReplacement(
        composer,
        recipes().updates[composition.update],
        bytes_per_weight=composition.bytes_per_weight,
        is_full=composition.is_full,
    )
    update.take_out()
    update.put_in_states()
    if composition.is_fused:
        update.put_in_backward()
    else:
        update.put_in_update()
    if composition.layer is not None:
        quantise(composer, recipes().layers[composition.layer])
    return composer.finished(work=update.work(StepPhase.BACKWARD if composition.is_fused else StepPhase.OPTIMIZER))


@lru_cache(maxsize=4)
def _body(slug: str) -> StepTrace:
    """Returns a shipped trace, cached: several optimizers of one model are often planned in a row."""
    body = read_trace(slug)
    assert body is not None, "a composition is of shipped traces"
    return body


def is_covered(form: StepForm) -> bool:
    """Whether the package can plan this step without torch."""
    return is_shipped(form.slug()) or composition_of(form) is not None


def what_is_missing(form: StepForm) -> str:
    """Names the setting without a trace, and what is covered instead."""
    for choice, nearest in _simpler(form):
        if is_covered(nearest):
            return f"{choice} is not covered for {form.model} in this combination; without it the step is"
    return f"no step of {form.model} with method.kind={form.method} is covered"


def _simpler(form: StepForm) -> Iterator[tuple[str, StepForm]]:
    """Yields the same step with one setting less."""
    if not form.is_checkpointed:
        yield "a share of gradient checkpointing below 1", replace(form, is_checkpointed=True)
    for key, value in form.others:
        yield f"{key}={value}", replace(form, others=tuple(other for other in form.others if other[0] != key))
    if form.targets is not None:
        yield "method.targets", replace(form, targets=None)
    if form.has_dropout:
        yield "method.dropout", replace(form, has_dropout=False)
    if form.weights != "fp32":
        yield f"train.weight_dtype={form.weights}", replace(form, weights="fp32", compensation="none")
    if form.precision != "bf16":
        yield f"train.precision={form.precision}", replace(form, precision="bf16")
    if form.method not in ("full", "lora"):
        yield f"method.kind={form.method}", replace(form, method="lora")
    plain = replace(
        form,
        others=(),
        targets=None,
        has_dropout=False,
        weights="fp32",
        compensation="none",
        method="lora",
        habits=NO_HABITS,
    )
    yield "this combination of choices", plain
