"""`foretune sample`: same prompt, same seed, side by side."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from foretune.cli.options import SIZE

QuantizedBase = Annotated[
    Literal["none", "int8", "float8", "float8-dynamic", "nf4", "int8-bnb"] | None,
    typer.Option("--quantize", help="Quantise the base: 8 or 4 bits a weight. [default: none]"),
]
QuantizedTextEncoders = Annotated[
    Literal["none", "int8", "float8", "nf4", "int8-bnb"] | None,
    typer.Option("--quantize-text-encoders", help="Quantise the text encoders. [default: none]"),
]


_Size = Annotated[str | None, typer.Option("--size", help=f"{SIZE} [default: the model's own]")]


def sample(
    base: Annotated[str, typer.Option("--base", help="The base model: catalogue name, hub id or local folder.")],
    prompts: Annotated[list[str] | None, typer.Option("--prompt", "-p", help="What to sample; repeatable.")] = None,
    adapter: Annotated[
        list[Path] | None, typer.Option("--adapter", help="An exported adapter to put beside it; repeatable.")
    ] = None,
    full: Annotated[
        list[Path] | None, typer.Option("--full", help="An exported full model to put beside it; repeatable.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture to write.")] = Path("samples.png"),
    seed: Annotated[int, typer.Option("--seed")] = 0,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Denoising steps.")] = 28,
    size: _Size = None,
    frames: Annotated[
        int | None, typer.Option("--frames", min=1, help="Frames of clips. [default: the model's own]")
    ] = None,
    guidance: Annotated[float | None, typer.Option("--guidance", help="The pipeline's own if left out.")] = None,
    text_tokens: Annotated[int | None, typer.Option("--text-tokens", help="Most tokens of a prompt.")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"] | None,
        typer.Option("--device", help="[default: an accelerator if there is one]"),
    ] = None,
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        typer.Option("--precision", help="Numbers to compute with. [default: bf16 on an accelerator, fp32 on a CPU]"),
    ] = None,
    quantize: QuantizedBase = None,
    quantize_text_encoders: QuantizedTextEncoders = None,
    vae_tiling: Annotated[
        bool, typer.Option("--vae-tiling", help="Decode in tiles: less memory for large images.")
    ] = False,
) -> None:
    """Sample the base and its fine-tuned versions with the same prompts and seed, in one labelled picture."""
    from foretune.api.sample import sample as sample_models
    from foretune.cli.progress import ProgressObserver

    with ProgressObserver() as observer:
        picture = sample_models(
            base,
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
            vae_tiling=vae_tiling,
            observer=observer,
        )
    columns = ", ".join(picture.columns)
    typer.echo(f"Wrote {output}: a row for each prompt; from left to right {columns}.")
