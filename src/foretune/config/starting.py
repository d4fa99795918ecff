"""The experiment one starts from."""

import json

from foretune.config.yaml_files import parse

_TEMPLATE = """\
# A Foretune experiment. Start it with: foretune train {file}
# Every key: foretune schema. Change one for a single run: foretune train {file} train.steps=10
model: {model}
method: {method}
data: {data}
train: {{steps: {steps}, batch_size: {batch_size}, gradient_accumulation: {accumulation}, precision: bf16, seed: 0}}
optimizer: {{kind: adamw, lr: {lr}, schedule: cosine, warmup_steps: {warmup}}}
levers: {{gradient_checkpointing: {checkpointing}, cache_latents: true, cache_text: true}}
validate: {{every: {every}, prompts: ["{prompt}"], num_inference_steps: {inference_steps}}}
save: {{every: {every}, keep: 3}}
parallel: {{devices: 1}}
track: []
"""

# Those without a rank; all others have one.
_METHODS = {"full": "{kind: full}", "oft": "{kind: oft, block_size: 32}"}


def starting_text(file: str, model: str, method: str, data: str | None, *, family: str | None) -> str:
    """The file that `foretune init` writes, and that a plan of a bare model name starts from."""
    small = family == "ddpm"
    resolution = 32 if small else 1024
    where = f"{{kind: folder, path: {_quoted(data)}" if data else "{kind: shapes, num_samples: 1024"
    cache = "" if small else ", cache_dir: ./cache"
    return _TEMPLATE.format(
        file=file,
        model=_quoted(model),
        method=_METHODS.get(method, f"{{kind: {method}, rank: 16}}"),
        data=f"{where}, resolution: {resolution}{cache}}}",
        steps=1000,
        batch_size=64 if small else 1,
        accumulation=1 if small else 4,
        lr="2.0e-4" if small else "1.0e-5" if method == "full" else "1.0e-4",
        warmup=100,
        checkpointing="0.0" if small else "1.0",
        every=250,
        prompt="a small red circle on blue" if data is None else "a harbour at dusk",
        inference_steps=100 if small else 28,
    )


def _quoted(text: str) -> str:
    """Text as YAML takes it for text: a JSON string always is, a plain word mostly."""
    plain = all(character.isalnum() or character in "./_-" for character in text)
    return text if plain and parse(text) == text else json.dumps(text, ensure_ascii=False)
