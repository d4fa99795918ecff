"""`foretune bench`: how fast it trains or samples here, honestly measured."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from foretune.cli.inference_options import Compile, Devices, Merge
from foretune.cli.options import SIZE, DataPlace, refuse_given
from foretune.core.errors import UserError

_OF_A_PRESET = {
    "batch": "is what a preset decides. Leave out one of the two.",
    "precision": "is what a preset decides. Leave out one of the two.",
}
_OF_VARIANTS = {
    name: f"is a key of a variant. Write --variant NAME:{key}"
    for name, key in {
        "batch": "batch=4",
        "precision": "precision=bf16",
        "adapter": "adapter=FOLDER, or adapter=OWNER/REPO",
        "quantize": "quantize=int8",
        "compiled": "compile=regional",
        "merge": "merge=true",
        "devices": "devices=2",
    }.items()
} | {
    "preset": "decides batch and precision, which are keys of a variant. Write --variant NAME:batch=256,precision=fp32",
    "image_batch": "does not go with --variant: images that are compared are made one at a time. Leave it out",
}
_OF_INFERENCE = {
    "preset": "is for inference. Add --inference",
    "batch": "is for inference. Of training it is part of the experiment: foretune bench FILE train.batch_size=4",
    "precision": "is for inference. Of training it is part of the experiment: foretune bench FILE train.precision=bf16",
    "size": "is for inference. Of training it is part of the experiment: foretune bench FILE data.resolution=512",
    "frames": "is for inference. Of training it is part of the experiment: foretune bench FILE data.num_frames=33",
    "adapter": "is for inference. Add --inference",
    "quantize": "is for inference. Of training: foretune bench FILE quantize.denoiser=int8",
    "compiled": "is for inference. Of training: foretune bench FILE levers.compile=regional",
    "merge": "is for inference. Add --inference",
    "devices": "is for inference. Of training: foretune bench FILE parallel.devices=2",
    "variant": "is for inference. Add --inference",
    "images": "is for inference. Add --inference",
    "image_batch": "is for inference. Add --inference",
    "inference_steps": "is for inference. Add --inference; the steps of a training are --steps",
}
_OF_TRAINING = {
    "data": "is for training: inference reads no data. Leave it out",
    "synthetic": "is for training: inference reads no data. Leave it out",
    "random_weights": "is for training. Leave it out",
    "share": "is for training. Leave it out",
    "break_even": "is for training. Leave it out",
    "yes": "goes with --share, which is for training. Leave it out",
}


_Target = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|EXPERIMENT",
        help="A model: catalogue name, Hub id or folder. Or an experiment file; with --inference a run directory.",
    ),
]
_Synthetic = Annotated[
    bool,
    typer.Option(
        "--synthetic",
        help="Synthetic latents and captions: no data, no encoders. [default for a model without --data]",
    ),
]
_Quantize = Annotated[
    str, typer.Option("--quantize", help="Of inference: int8, float8, nf4 or int8-bnb weights of the denoiser.")
]
_Adapter = Annotated[
    str | None, typer.Option("--adapter", help="For inference: a folder, a file, or OWNER/REPO on the Hub.")
]
_Variants = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        help="Of inference: NAME:key=value,... compares several, measured in turns. Keys: precision, quantize, "
        "compile, merge, adapter, batch, devices. The first is what others are compared with.",
    ),
]

_Repeat = Annotated[
    int | None,
    typer.Option("--repeat", min=1, help="Repeats, each in a fresh process. [default: 5; --variant: 3]"),
]
_Images = Annotated[
    int | None,
    typer.Option("--images", min=0, help="Batches of images, end to end; 0: none. [default: 3; --variant: 2]"),
]
_InferenceSteps = Annotated[
    int | None,
    typer.Option("--inference-steps", min=1, help="Denoising steps of an image. [default: 28; --variant: 20]"),
]


def bench(
    context: typer.Context,
    target: _Target,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes for this bench: key=value ...", show_default=False)
    ] = None,
    data: DataPlace = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Steps of each repeat. [default: 50; --inference: 20]")
    ] = None,
    repeat: _Repeat = None,
    synthetic: _Synthetic = False,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Random weights and synthetic data: nothing is downloaded.")
    ] = False,
    break_even: Annotated[
        bool, typer.Option(help="Where the experiment compiles: measure it uncompiled too, in turns.")
    ] = True,
    inference: Annotated[bool, typer.Option("--inference", help="Denoising steps and images instead.")] = False,
    preset: Annotated[
        str | None, typer.Option("--preset", help="classical: denoising steps at batch 256 in fp32.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images in a denoising step.")] = 1,
    precision: Annotated[str, typer.Option("--precision", help="Of inference: fp32, tf32, bf16 or fp16.")] = "fp32",
    size: Annotated[str | None, typer.Option("--size", help=SIZE)] = None,
    frames: Annotated[int | None, typer.Option("--frames", min=1, help="Frames of clips, for inference.")] = None,
    adapter: _Adapter = None,
    quantize: _Quantize = "none",
    compiled: Compile = "off",
    merge: Merge = False,
    devices: Devices = 1,
    variant: _Variants = None,
    images: _Images = None,
    image_batch: Annotated[int, typer.Option("--image-batch", min=1, help="Images made at once.")] = 1,
    inference_steps: _InferenceSteps = None,
    benches: Annotated[Path, typer.Option("--benches", help="Where results are kept.")] = Path("benches"),
    share: Annotated[
        Path | None, typer.Option("--share", help="Add the measurement as a row to this CSV file; it is shown first.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --share: do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print bench.json instead of the table.")] = False,
) -> None:
    """Measure speed.

    Examples: foretune bench sdxl train.batch_size=4, foretune bench experiment.yaml --repeat 10 levers.compile=regional
    """
    refuse_given(context, _OF_TRAINING if inference else _OF_INFERENCE)
    choices: dict[str, Any] = {"benches": benches, "as_json": as_json, **_typed(steps=steps, repeat=repeat)}
    if inference:
        _refuse_overrides(overrides or [])
        refuse_given(context, _OF_VARIANTS if variant else {} if preset is None else _OF_A_PRESET)
        choices |= {"size": size, "frames": frames, **_typed(images=images, inference_steps=inference_steps)}
        way = {"adapter": adapter, "preset": preset, "batch": batch, "precision": precision, "merge": merge}
        way |= {"quantize": quantize, "compile": compiled, "image_batch": image_batch, "devices": devices}
        choices |= {} if variant else way
        measure = partial(_compare, variants=variant) if variant else _inference
        measure(target, **choices)
    else:
        choices |= {"data": data, "synthetic": synthetic, "random_weights": random_weights, "break_even": break_even}
        _shared_training(share, target, overrides or [], yes=yes, **choices)


def _typed(**options: int | None) -> dict[str, int]:
    """The options that were typed. The others have the defaults of the function that is called."""
    return {name: value for name, value in options.items() if value is not None}


def _shared_training(share: Path | None, experiment: str, overrides: list[str], *, yes: bool, **choices: Any) -> None:
    """Measures training, and adds the measurement to a file if one is given."""
    _refuse_share(share, yes=yes)
    found = _training(experiment, overrides, **choices)
    if share is not None:
        _share(found, share, yes=yes, to_stderr=choices["as_json"])


def _refuse_share(file: Path | None, *, yes: bool) -> None:
    """Raises before anything is measured that could not be shared afterwards."""
    if file is None:
        return
    from foretune.api.sharing import refuse_other_files

    refuse_other_files(file)
    if not yes and not sys.stdin.isatty():
        raise UserError("--share asks before it writes, and nobody is there to answer. Add --yes.")


def _share(measured: Any, file: Path, *, yes: bool, to_stderr: bool) -> None:
    from foretune.api.sharing import share, shared_row
    from foretune.cli.status import StatusObserver
    from foretune.reports.terminal.shared_rows import row_lines

    with StatusObserver("Planning the measured steps") as observer:
        row = shared_row(measured, observer=observer)
    typer.echo(f"\nThe row for {file}:", err=to_stderr)
    for line in row_lines(row):
        typer.echo(line, err=to_stderr)
    if yes or typer.confirm(f"Add it to {file}?", err=to_stderr):
        share(row, file)
        typer.echo(f"Added to {file}. To compare it with the plan, run: foretune backtest --data {file}", err=to_stderr)
    else:
        typer.echo("Nothing was written.", err=to_stderr)


def _training(experiment: str, overrides: list[str], *, as_json: bool, **options: Any) -> Any:
    from foretune.api.bench import bench as bench_training
    from foretune.cli.progress import ProgressObserver
    from foretune.reports.terminal.bench import print_bench

    with ProgressObserver() as observer:
        result = bench_training(experiment, overrides, observer=observer, **options)
    if as_json:
        typer.echo(json.dumps(result.to_mapping(), indent=2))
    else:
        print_bench(result)
    return result


def _refuse_overrides(overrides: list[str]) -> None:
    if overrides:
        raise UserError(
            f"--inference takes a model and options, not {overrides[0]!r}. "
            "Run: foretune bench MODEL --inference --batch 4"
        )


def _inference(target: str, *, as_json: bool, **options: Any) -> None:
    from foretune.api.bench import bench_inference
    from foretune.cli.progress import ProgressObserver
    from foretune.reports.terminal.bench import print_inference

    with ProgressObserver() as observer:
        result = bench_inference(target, observer=observer, **options)
    if as_json:
        typer.echo(json.dumps(result.to_mapping(), indent=2))
    else:
        print_inference(result)


def _compare(target: str, variants: list[str], *, as_json: bool, **options: Any) -> None:
    from foretune.api.bench import compare_inference, variants_named
    from foretune.cli.progress import ProgressObserver
    from foretune.reports.terminal.bench import print_variants

    with ProgressObserver() as observer:
        found = compare_inference(target, variants_named(variants), observer=observer, **options)
    if as_json:
        typer.echo(json.dumps(found.study, indent=2))
    else:
        print_variants(found.study, found.path)
