"""`foretune sample`: same prompt, same seed, side by side."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from foretune.cli.inference_options import Compile, Devices, Merge
from foretune.cli.options import SIZE

QuantizedBase = Annotated[
    Literal["none", "int8", "float8", "float8-dynamic", "nf4", "int8-bnb"] | None,
    typer.Option("--quantize", help="Quantise the base: 8 or 4 bits a weight. [default: as RUN, or none]"),
]
QuantizedTextEncoders = Annotated[
    Literal["none", "int8", "float8", "nf4", "int8-bnb"] | None,
    typer.Option("--quantize-text-encoders", help="Quantise the text encoders. [default: as RUN, or none]"),
]
Runs = Annotated[list[Path] | None, typer.Argument(metavar="RUN...", help="Run directories to put beside their base.")]
Base = Annotated[
    str | None,
    typer.Option("--base", help="The base model: catalogue name, hub id or local folder. [default: of the runs]"),
]
Adapters = Annotated[
    list[str] | None,
    typer.Option("--adapter", help="Adapter beside it: a folder, a file, or OWNER/REPO on the Hub; repeatable."),
]
FullModels = Annotated[
    list[Path] | None, typer.Option("--full", help="An exported full model to put beside it; repeatable.")
]
Size = Annotated[
    str | None,
    typer.Option("--size", help=f"{SIZE} [default: as RUN, or the model's own]"),
]
Frames = Annotated[
    int | None, typer.Option("--frames", min=1, help="Frames of clips. [default: as RUN, or the model's own]")
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | None,
    typer.Option("--device", help="[default: as RUN, or an accelerator if there is one]"),
]
Precision = Annotated[
    Literal["fp32", "bf16", "fp16"] | None,
    typer.Option(
        "--precision", help="Numbers to compute with. [default: as RUN, or bf16 on an accelerator, fp32 on a CPU]"
    ),
]
VaeTiling = Annotated[
    bool | None,
    typer.Option(help="Decode in tiles: less memory for large images. [default: as RUN, or off]"),
]
Prompts = Annotated[list[str] | None, typer.Option("--prompt", "-p", help="What to sample; repeatable.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="The picture to write.")]


def sample(
    runs: Runs = None,
    base: Base = None,
    prompts: Prompts = None,
    adapter: Adapters = None,
    full: FullModels = None,
    output: Output = Path("samples.png"),
    seed: Annotated[int, typer.Option("--seed")] = 0,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Denoising steps.")] = 28,
    size: Size = None,
    frames: Frames = None,
    guidance: Annotated[float | None, typer.Option("--guidance", help="The pipeline's own if left out.")] = None,
    text_tokens: Annotated[int | None, typer.Option("--text-tokens", help="Most tokens of a prompt.")] = None,
    device: Device = None,
    precision: Precision = None,
    quantize: QuantizedBase = None,
    quantize_text_encoders: QuantizedTextEncoders = None,
    compiled: Compile = "off",
    merge: Merge = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images in one call of a model.")] = 1,
    devices: Devices = 1,
    vae_tiling: VaeTiling = None,
) -> None:
    """Sample the base and its fine-tuned versions with the same prompts and seed, in one labelled picture."""
    from foretune.api.sample import sample as sample_models
    from foretune.cli.progress import ProgressObserver

    with ProgressObserver() as observer:
        picture = sample_models(
            base,
            runs=runs or (),
            prompts=prompts or ("a small red circle on blue",),
            adapters=adapter or (),
            full=full or (),
            output=output,
            seed=seed,
            steps=steps,
            size=size,
            frames=frames,
            guidance=guidance,
            text_tokens=text_tokens,
            device=device,
            precision=precision,
            quantize=quantize,
            quantize_text_encoders=quantize_text_encoders,
            compile=compiled,
            merge=merge,
            batch=batch,
            devices=devices,
            vae_tiling=vae_tiling,
            observer=observer,
        )
    columns = ", ".join(picture.columns)
    typer.echo(f"Wrote {output}: a row for each prompt; from left to right {columns}.")
