"""`bench` and `bench_inference`: speed, measured in fresh processes."""

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from foretune.api.live_steps import LiveSteps
from foretune.api.start import Changes, ExperimentLike, import_libraries, read_to_start
from foretune.core.errors import UnknownName
from foretune.core.extras import require
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from foretune.choices.training import Precision
    from foretune.config.readiness import Need
    from foretune.measure.bench import Bench
    from foretune.measure.bench_inference import InferenceBench


def bench(
    experiment: ExperimentLike,
    changes: Changes | None = None,
    *,
    steps: int = 50,
    repeat: int = 5,
    synthetic: bool = False,
    random_weights: bool = False,
    break_even: bool = True,
    benches: str | Path = "benches",
    observer: Observer | None = None,
) -> "Bench":
    """Measures training speed: `repeat` fresh processes of `steps` optimizer steps each; every step time is kept.

    Args:
        experiment: an experiment file, or its content as a mapping.
        changes: settings for this bench by dotted key.
        steps: optimizer steps of each repeat.
        repeat: fresh processes.
        synthetic: synthetic latents and captions: no data, no encoders.
        random_weights: synthetic data, and a model of random weights: nothing is downloaded.
        break_even: where the experiment compiles, measure it uncompiled too, in turns.
        benches: where results are kept.
        observer: receives progress; its `planned` gets the forecast.
    """
    observer = observer or Observer()
    synthetic = synthetic or random_weights
    needs: tuple[Need, ...] = ("adapters",) if synthetic else ("data", "adapters")
    asked = read_to_start(experiment, changes, "Measuring", needs)
    device = asked.experiment.parallel.device
    import_libraries(observer, "foretune.measure.bench", "foretune.training.forecast", device=device)
    from foretune.measure.bench import BenchChoices
    from foretune.measure.bench import bench as run_bench
    from foretune.training.forecast import plan_here

    choices = BenchChoices(
        num_steps=steps,
        num_repeats=repeat,
        is_synthetic=synthetic,
        has_random_weights=random_weights,
        has_break_even=break_even,
    )
    plan = plan_here(asked, LiveSteps(observer), observer.message)
    if plan is not None:
        observer.planned(plan)
    return run_bench(asked, choices, Path(benches), observer, plan)


def bench_inference(
    target: str,
    *,
    adapter: str | Path | None = None,
    preset: str | None = None,
    batch: int = 1,
    precision: "Precision" = "fp32",
    size: int | str | None = None,
    frames: int | None = None,
    steps: int = 20,
    repeat: int = 5,
    images: int = 3,
    image_batch: int = 1,
    inference_steps: int = 28,
    benches: str | Path = "benches",
    observer: Observer | None = None,
) -> "InferenceBench":
    """Measures denoising steps and whole images of a model, its folder or a run.

    Args:
        target: a model, its folder, or a run directory.
        adapter: an exported adapter to load.
        preset: `classical`, denoising steps at batch 256 in fp32, decides batch and precision.
        batch: images in a denoising step.
        precision: fp32, tf32, bf16 or fp16.
        size: side in pixels, or a width and a height such as "416x240"; the model's own if left out.
        frames: number of frames of clips; the model's own if left out.
        steps: denoising steps measured in each repeat.
        repeat: fresh processes.
        images: batches of whole images; 0 for none.
        image_batch: images made at once.
        inference_steps: denoising steps of an image.
        benches: where results are kept.
        observer: receives progress.
    """
    from foretune.choices import training
    from foretune.measure.bench_request import PRESETS
    from foretune.quality.naming import check_subject

    observer = observer or Observer()
    if precision not in get_args(training.Precision):
        raise UnknownName("precision", precision, get_args(training.Precision))
    if preset is not None:
        if preset not in PRESETS:
            raise UnknownName("preset", preset, PRESETS)
        batch, precision = PRESETS[preset].batch_size, PRESETS[preset].precision
    check_subject(target)
    require("train", "Measuring inference")
    import_libraries(observer, "foretune.measure.bench_inference", warns_if_busy=True, device="auto")
    from foretune.measure.bench_inference import InferenceChoices
    from foretune.measure.bench_inference import bench_inference as run_bench

    choices = InferenceChoices(
        preset=preset,
        batch_size=batch,
        precision=precision,
        size_px=size,
        num_frames=frames,
        num_steps=steps,
        num_repeats=repeat,
        num_images=images,
        image_batch_size=image_batch,
        num_inference_steps=inference_steps,
    )
    return run_bench(target, None if adapter is None else Path(adapter), choices, Path(benches), observer)
