"""The experiment one starts from."""

import json
from dataclasses import dataclass
from typing import Any

from foretune.catalog import FamilyFacts, denoisers, family_facts
from foretune.choices.model import SHIPPED_MODELS
from foretune.config.data_place import data_keys
from foretune.config.yaml_files import parse, typed

_TEMPLATE = """\
# A Foretune experiment. Start it with: foretune train {file}
# Every key: foretune schema. Change one for a single run: foretune train {file} train.steps=10
model: {model}
method: {method}
data: {data}
train: {{steps: {steps}, batch_size: {batch}, gradient_accumulation: {accumulation}, precision: {precision}, seed: 0}}
optimizer: {{kind: adamw, lr: {lr}, schedule: cosine, warmup_steps: {warmup}}}
levers: {{gradient_checkpointing: {checkpointing}, cache_latents: true, cache_text: true}}
validate: {{every: {every}, prompts: ["{prompt}"], num_inference_steps: {inference_steps}{guidance}}}
save: {{every: {every}, keep: 3}}
parallel: {{devices: 1}}
track: []
"""

_FEW_STEPS = 8
# Those without a rank; all others have one.
_METHODS = {"full": "{kind: full}", "oft": "{kind: oft, block_size: 32}"}


@dataclass(frozen=True, kw_only=True)
class _Start:
    """What one begins with, for models of one kind."""

    shapes: str = "num_samples: 1024"
    resolution_px: int | None = None
    """None: what is usual for the family."""
    steps: int = 1000
    batch_size: int = 1
    accumulation: int = 4
    precision: str = "bf16"
    lr: str = "1.0e-4"
    full_lr: str = "1.0e-5"
    warmup: int = 100
    checkpointing: str = "1.0"
    every: int = 250
    inference_steps: int = 28
    caches: bool = True


_LARGE = _Start()
_SMALL = _Start(
    batch_size=64,
    accumulation=1,
    lr="2.0e-4",
    full_lr="2.0e-4",
    checkpointing="0.0",
    inference_steps=100,
    caches=False,
)
# For minutes on a laptop's CPU, where fp32 is the quickest.
_SHIPPED = _Start(
    shapes="num_samples: 512, style: framed, placement: middle",
    resolution_px=32,
    steps=300,
    batch_size=16,
    accumulation=1,
    precision="fp32",
    lr="2.0e-3",
    full_lr="2.0e-4",
    warmup=20,
    checkpointing="0.0",
    every=100,
)


def starting_text(
    file: str, model: str, method: str, data: str | None, *, family: str | None, data_kind: str | None = None
) -> str:
    """The file that `foretune init` writes, and that a plan or a training of a bare model name starts from.

    `data_kind` is the kind of `data` where it is known; left out, the files there decide.
    """
    facts = None if family is None else family_facts(family)
    start = _SHIPPED if model in SHIPPED_MODELS else _SMALL if facts is not None and facts.is_small else _LARGE
    # Distilled to few steps without guidance.
    is_distilled = model in denoisers() and denoisers()[model].distillation == "timestep"
    return _TEMPLATE.format(
        file=file,
        model=_quoted(model),
        method=_METHODS.get(method, f"{{kind: {method}, rank: 16}}"),
        data=_data(data, data_kind, start, facts),
        steps=start.steps,
        batch=start.batch_size,
        accumulation=start.accumulation,
        precision=start.precision,
        lr=start.full_lr if method == "full" else start.lr,
        warmup=start.warmup,
        checkpointing=start.checkpointing,
        every=start.every,
        prompt="a small red circle on blue" if data is None else "a harbour at dusk",
        inference_steps=_FEW_STEPS if is_distilled else start.inference_steps,
        guidance=f", guidance_scale: {facts.unguided_scale}" if is_distilled and facts is not None else "",
    )


def _data(place: str | None, kind: str | None, start: _Start, facts: FamilyFacts | None) -> str:
    """The section `data`, on one line."""
    keys: dict[str, Any] = {}
    if place:
        is_video = facts is not None and facts.is_video
        keys = data_keys(place, is_video=is_video) if kind is None else {"kind": kind, "path": place}
    resolution_px = start.resolution_px or (FamilyFacts.starting_px if facts is None else facts.starting_px)
    if resolution_px is not None:
        keys.setdefault("resolution", resolution_px)
    if facts is not None and facts.starting_frames is not None:
        keys.setdefault("num_frames", facts.starting_frames)
    if start.caches:
        keys["cache_dir"] = "./cache"
    written = [f"{key}: {_quoted(value) if isinstance(value, str) else typed(value)}" for key, value in keys.items()]
    shapes = [] if place else [f"kind: shapes, {start.shapes}"]
    return "{" + ", ".join((*shapes, *written)) + "}"


def _quoted(text: str) -> str:
    """Text as YAML takes it for text: a JSON string always is, a plain word mostly."""
    plain = all(character.isalnum() or character in "./_-" for character in text)
    return text if plain and parse(text) == text else json.dumps(text, ensure_ascii=False)
