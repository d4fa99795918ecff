"""`foretune bench`: how fast it trains or samples here, honestly measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretune.cli.extras import require
from foretune.cli.options import refuse_given
from foretune.cli.quiet import quieten
from foretune.cli.starting import read_to_start

if TYPE_CHECKING:
    from foretune.config.readiness import Need

_OF_A_PRESET = {
    "batch": "is what a preset decides. Leave out one of the two.",
    "precision": "is what a preset decides. Leave out one of the two.",
}
_OF_INFERENCE = {
    "preset": "is for inference. Add --inference",
    "batch": "is for inference. Of training it is part of the experiment: foretune bench FILE train.batch_size=4",
    "precision": "is for inference. Of training it is part of the experiment: foretune bench FILE train.precision=bf16",
    "size": "is for inference. Of training it is part of the experiment: foretune bench FILE data.resolution=512",
    "adapter": "is for inference. Add --inference",
    "images": "is for inference. Add --inference",
    "image_batch": "is for inference. Add --inference",
    "inference_steps": "is for inference. Add --inference; the steps of a training are --steps",
}
_OF_TRAINING = {
    "synthetic": "is for training: inference reads no data. Leave it out",
    "break_even": "is for training. Leave it out",
}


def bench(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(help="An experiment file; with --inference a model, its folder, or a run directory.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes for this bench: key=value ...", show_default=False)
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Steps of each repeat. [default: 50; --inference: 20]")
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Repeats, each in a fresh process.")] = 5,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Synthetic latents and captions: no data, no encoders.")
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
    size: Annotated[int | None, typer.Option("--size", help="Side of the images in px.")] = None,
    adapter: Annotated[Path | None, typer.Option("--adapter", help="An exported adapter, for inference.")] = None,
    images: Annotated[int, typer.Option("--images", min=0, help="Batches of images, end to end; 0: none.")] = 3,
    image_batch: Annotated[int, typer.Option("--image-batch", min=1, help="Images made at once.")] = 1,
    inference_steps: Annotated[int, typer.Option("--inference-steps", min=1, help="Denoising steps of an image.")] = 28,
    benches: Annotated[Path, typer.Option("--benches", help="Where results are kept.")] = Path("benches"),
    as_json: Annotated[bool, typer.Option("--json", help="Print bench.json instead of the table.")] = False,
) -> None:
    """Measure speed. Example: foretune bench experiment.yaml --steps 50 --repeat 10 levers.compile=regional"""
    refuse_given(context, _OF_TRAINING if inference else _OF_INFERENCE)
    if preset is not None:
        refuse_given(context, _OF_A_PRESET)
    if inference:
        asked = {
            "batch_size": batch,
            "precision": precision,
            "size_px": size,
            "num_steps": steps or 20,
            "num_repeats": repeat,
            "num_images": images,
            "image_batch_size": image_batch,
            "num_inference_steps": inference_steps,
        }
        _inference(target, overrides or [], asked, adapter=adapter, preset=preset, benches=benches, as_json=as_json)
        return
    measured = {
        "num_steps": steps or 50,
        "num_repeats": repeat,
        "is_synthetic": synthetic,
        "has_break_even": break_even,
    }
    _training(Path(target), overrides or [], measured, benches, as_json=as_json)


def _training(path: Path, overrides: list[str], asked_for: dict[str, Any], benches: Path, *, as_json: bool) -> None:
    needs: tuple[Need, ...] = ("adapters",) if asked_for["is_synthetic"] else ("data", "adapters")
    asked = read_to_start(path, overrides, "Measuring", needs)
    quieten()
    from foretune.cli.bench_text import print_bench
    from foretune.cli.plan import Recording
    from foretune.cli.progress import ProgressObserver
    from foretune.run.bench import BenchChoices
    from foretune.run.bench import bench as run_bench
    from foretune.run.forecast import plan_here

    choices = BenchChoices(**asked_for)
    with ProgressObserver() as observer:
        plan = plan_here(asked, Recording(lambda _: None), observer.message)
        result = run_bench(asked, choices, benches, observer, plan)
    if as_json:
        _print_file(result.path)
    else:
        print_bench(result, plan)


def _inference(
    target: str,
    overrides: list[str],
    asked_for: dict[str, Any],
    *,
    adapter: Path | None,
    preset: str | None,
    benches: Path,
    as_json: bool,
) -> None:
    from foretune.core.errors import UnknownName, UserError

    if overrides:
        raise UserError(
            f"--inference takes a model and options, not {overrides[0]!r}. "
            "Run: foretune bench MODEL --inference --batch 4"
        )
    from foretune.run.bench_request import PRESETS
    from foretune.run.quality.naming import check_subject

    _check_precision(asked_for["precision"])
    if preset is not None:
        if preset not in PRESETS:
            raise UnknownName("preset", preset, PRESETS)
        asked_for |= {"batch_size": PRESETS[preset].batch_size, "precision": PRESETS[preset].precision}
    check_subject(target)
    require("train", "Measuring inference")
    from foretune.run.busyness import BusyWatch

    watch = BusyWatch()
    quieten()
    from foretune.cli.bench_text import print_inference
    from foretune.cli.progress import ProgressObserver
    from foretune.run.bench_inference import InferenceChoices, bench_inference

    choices = InferenceChoices(preset=preset, **asked_for)
    with ProgressObserver() as observer:
        watch.warn(observer)
        result = bench_inference(target, adapter, choices, benches, observer)
    if as_json:
        _print_file(result.path)
    else:
        print_inference(result)


def _check_precision(asked: str) -> None:
    from typing import get_args

    from foretune.choices.training import Precision
    from foretune.core.errors import UnknownName

    if asked not in get_args(Precision):
        raise UnknownName("precision", asked, get_args(Precision))


def _print_file(path: Path) -> None:
    from foretune.run.bench import BENCH_FILE

    typer.echo((path / BENCH_FILE).read_text(encoding="utf-8"), nl=False)
