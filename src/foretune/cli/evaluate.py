"""`foretune evaluate`: how good a run's images are, beside those of the model it started from."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from foretune.cli.inference_options import Compile, Devices, Merge
from foretune.cli.options import SIZE
from foretune.core.errors import UserError
from foretune.core.input_files import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foretune.core.values import Evaluation

Against = Annotated[
    str | None, typer.Option("--against", help="Model, folder or run to compare with; else where RUN started from.")
]
Prompts = Annotated[
    Path | None, typer.Option("--prompts", help="A file with one prompt a line. Left out: held-out captions.")
]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Denoising steps. [default: as the run validates]")]
BaseSteps = Annotated[
    int | None, typer.Option("--base-steps", min=1, help="Of the base, if others. [default: as --steps]")
]
Metrics = Annotated[
    str | None, typer.Option("--metrics", help="Names with commas between, such as captions,loss. [default: all]")
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | None, typer.Option("--device", help="[default: as the run was trained]")
]
Numbers = Annotated[
    Literal["fp32", "bf16", "fp16"] | None,
    typer.Option("--precision", help="Numbers to compute with. [default: as the run was trained]"),
]
Quantized = Annotated[
    Literal["none", "int8", "float8", "float8-dynamic", "nf4", "int8-bnb"] | None,
    typer.Option("--quantize", help="Quantise the base of both columns. [default: as the run was trained]"),
]
QuantizedEncoders = Annotated[
    Literal["none", "int8", "float8", "nf4", "int8-bnb"] | None,
    typer.Option("--quantize-text-encoders", help="[default: as the run was trained]"),
]
Batch = Annotated[
    int | None, typer.Option("--batch", min=1, help="Images in one call of a model. [default: by their size]")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Folder to write to. [default: RUN/quality]")]
ExtractorName = Annotated[
    str, typer.Option("--extractor", help="For FID and KID: vae, pixels, clip:WHERE or dino:WHERE.")
]

Size = Annotated[str | None, typer.Option("--size", help=f"{SIZE} [default: as trained]")]

_MOST_PROMPTS_BYTES = 16 * 2**20


def evaluate(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run directories, or a folder with a pipeline.")],
    against: Against = None,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", "-p", help="What to sample; repeatable.")] = None,
    prompts: Prompts = None,
    num_prompts: Annotated[int, typer.Option("--num-prompts", min=1, help="Largest number of held-out captions.")] = 16,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Images of each prompt.")] = 2,
    first_seed: Annotated[int, typer.Option("--first-seed", min=0)] = 0,
    steps: Steps = None,
    base_steps: BaseSteps = None,
    size: Size = None,
    guidance: Annotated[float | None, typer.Option("--guidance", help="The pipeline's own if left out.")] = None,
    held_out: Annotated[int, typer.Option("--held-out", min=0, help="Largest number of held-out images.")] = 32,
    metrics: Metrics = None,
    extractor: ExtractorName = "vae",
    clip: Annotated[str | None, typer.Option("--clip", help="CLIP score: a folder or a hub id.")] = None,
    device: Device = None,
    precision: Numbers = None,
    quantize: Quantized = None,
    quantize_text_encoders: QuantizedEncoders = None,
    compiled: Compile = "off",
    merge: Merge = False,
    batch: Batch = None,
    devices: Devices = 1,
    output: Output = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print evaluation.json instead of the table.")] = False,
) -> None:
    """Sample a run and its base at fixed prompts and seeds, and say in what they differ."""
    from foretune.api.evaluate import evaluate as evaluate_runs
    from foretune.cli.progress import ProgressObserver

    with ProgressObserver() as observer:
        found = evaluate_runs(
            runs,
            against=against,
            prompts=(*(prompt or ()), *_lines(prompts)),
            num_prompts=num_prompts,
            seeds=seeds,
            first_seed=first_seed,
            steps=steps,
            base_steps=base_steps,
            size=size,
            guidance=guidance,
            held_out=held_out,
            metrics=_names(metrics),
            extractor=extractor,
            clip=clip,
            device=device,
            precision=precision,
            quantize=quantize,
            quantize_text_encoders=quantize_text_encoders,
            compile=compiled,
            merge=merge,
            batch=batch,
            devices=devices,
            output=output,
            observer=observer,
        )
    _print_json(found) if as_json else _print_tables(runs, found, output)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _print_json(found: "Sequence[Evaluation]") -> None:
    mappings = [evaluation.to_mapping() for evaluation in found]
    typer.echo(json.dumps(mappings[0] if len(mappings) == 1 else mappings, indent=2))


def _print_tables(runs: list[str], found: "Sequence[Evaluation]", output: Path | None) -> None:
    from foretune.api.evaluate import too_few_steps
    from foretune.reports.terminal.evaluation import print_evaluation

    for run, evaluation in zip(runs, found, strict=True):
        print_evaluation(evaluation, output or Path(run) / "quality", too_few_steps(run))


def _lines(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        lines = read_text(path, _MOST_PROMPTS_BYTES).splitlines()
    except OSError as error:
        raise UserError(f"--prompts: {path} cannot be read: {error}. It should hold one prompt a line.") from error
    found = tuple(line.strip() for line in lines if line.strip())
    if not found:
        raise UserError(f"--prompts: {path} is empty. It should hold one prompt a line.")
    return found
