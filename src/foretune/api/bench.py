"""`bench` and `bench_inference`: speed, measured in fresh processes."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.api.live_steps import LiveSteps
from foretune.api.start import Changes, ExperimentFile, ExperimentLike, announce, import_libraries, read_to_start
from foretune.choices.inference import VariantChoices
from foretune.core.errors import UnknownName, UserError
from foretune.core.extras import require
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from foretune.choices.quantize import DenoiserNumbers
    from foretune.choices.training import CompileMode, Precision
    from foretune.config.readiness import Need
    from foretune.measure.bench import Bench, BenchChoices
    from foretune.measure.bench_inference import InferenceBench
    from foretune.measure.inference_variants import MeasuredVariant


def bench(
    experiment: ExperimentLike,
    changes: Changes | None = None,
    *,
    data: str | Path | None = None,
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
        experiment: an experiment file, its content as a mapping, or a model, as for `train`.
        changes: settings for this bench by dotted key.
        data: with a model: what it is trained on, as for `train`; without it, synthetic latents and captions.
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
    asked = read_to_start(experiment, changes, "Measuring", needs, data=data, is_synthetic=True)
    synthetic = synthetic or not asked.has_data
    announce(asked, observer, has_length=False, has_synthetic_data=synthetic)
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
    measured = run_bench(asked, choices, Path(benches), observer, plan)
    ExperimentFile(asked, observer, "bench", *_options(choices)).began(Path(measured.series.repeats[0].run))
    return measured


def _options(choices: "BenchChoices") -> list[str]:
    """The choices as options of the command line."""
    options = ["--steps", str(choices.num_steps), "--repeat", str(choices.num_repeats)]
    options += ["--random-weights"] if choices.has_random_weights else ["--synthetic"] * choices.is_synthetic
    return options if choices.has_break_even else [*options, "--no-break-even"]


def bench_inference(
    target: str,
    *,
    adapter: str | Path | None = None,
    preset: str | None = None,
    batch: int = 1,
    precision: "Precision" = "fp32",
    quantize: "DenoiserNumbers" = "none",
    compile: "CompileMode" = "off",  # noqa: A002 - the name of the lever
    merge: bool = False,
    devices: int = 1,
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
        adapter: the adapter to load: a folder that `export` wrote, a .safetensors file, or a repository of the Hub.
        preset: `classical`, denoising steps at batch 256 in fp32, decides batch and precision.
        batch: images in a denoising step of each device.
        precision: fp32, tf32, bf16 or fp16.
        quantize: numbers of the denoiser's weights, as `quantize.denoiser` of an experiment.
        compile: `regional` compiles the repeated blocks; what that takes is the time of the first steps.
        merge: add the adapter, or that of the run, to the weights.
        devices: devices of this machine that do this at the same time; speeds are those of all.
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
    from foretune.choices.inference import MeasuredForm, check_form, form_of
    from foretune.measure.bench_request import PRESETS
    from foretune.quality.naming import check_subject

    observer = observer or Observer()
    if preset is not None:
        if preset not in PRESETS:
            raise UnknownName("preset", preset, PRESETS)
        batch, precision = PRESETS[preset].batch_size, PRESETS[preset].precision
    form = MeasuredForm(
        precision=precision, quantize=quantize, compile=compile, merge=merge, batch_size=batch, devices=devices
    )
    check_form(form, has_adapter_file=adapter is not None)
    check_subject(target)
    require("train", "Measuring inference")
    import_libraries(observer, "foretune.measure.bench_inference", warns_if_busy=True, device="auto")
    from foretune.hub.adapters import locate_adapter
    from foretune.measure.bench_inference import InferenceChoices
    from foretune.measure.bench_inference import bench_inference as run_bench

    choices = InferenceChoices(
        **form_of(form),
        preset=preset,
        size_px=size,
        num_frames=frames,
        num_steps=steps,
        num_repeats=repeat,
        num_images=images,
        image_batch_size=image_batch,
        num_inference_steps=inference_steps,
    )
    located = None if adapter is None else locate_adapter(adapter)
    return run_bench(target, located, choices, Path(benches), observer)


@dataclass(frozen=True)
class InferenceComparison:
    """Ways to sample from one model beside the first of them."""

    path: Path
    measured: "tuple[MeasuredVariant, ...]"
    """In the order given, with every raw time."""
    study: Mapping[str, Any]
    """Rows with intervals, comparisons and findings, as a study has them."""


def compare_inference(
    target: str,
    variants: Mapping[str, Mapping[str, Any]],
    *,
    folder: str | Path | None = None,
    steps: int = VariantChoices.steps,
    repeat: int = VariantChoices.repeat,
    images: int = VariantChoices.images,
    inference_steps: int = VariantChoices.inference_steps,
    size: int | str | None = None,
    frames: int | None = None,
    benches: str | Path = "benches",
    observer: Observer | None = None,
) -> InferenceComparison:
    """Measures several ways to sample from a model in turns: speed, memory, start-up, and likeness to the first.

    Args:
        target: a model, its folder, or a run directory.
        variants: a name and what differs from fp32: `precision`, `quantize`, `compile`, `merge`, `adapter`, `batch`,
            `devices`.
        folder: where measurements are kept; what is there is not measured again, and refused if the model has changed
            since. Default: a new one in `benches`.
        steps: denoising steps of each repeat.
        repeat: fresh processes; fewer than three give no intervals.
        images: images of each variant from the same seeds, compared with those of the first; 0 for none.
        inference_steps: denoising steps of an image.
        size: side in pixels, or a width and a height such as "416x240"; the model's own if left out.
        frames: number of frames of clips; the model's own if left out.
        benches: where results without a `folder` are kept.
        observer: receives progress.
    """
    observer = observer or Observer()
    require("train", "Measuring inference")
    import_libraries(observer, "foretune.measure.model_content", warns_if_busy=True, device="auto")
    from foretune.analyse.inference_study import inference_study
    from foretune.choices.study import NAME
    from foretune.hub.adapters import locate_adapter
    from foretune.measure.bench import new_directory
    from foretune.measure.inference_variants import measure_variants, variant_of
    from foretune.measure.model_content import file_contents, model_content
    from foretune.quality.naming import check_subject
    from foretune.quality.similarity import likeness
    from foretune.record.atomic import write_text

    check_subject(target)
    for name in variants:
        if not re.match(NAME, name):
            raise UserError(f"{name!r} cannot name a variant: up to 100 letters, digits, '.', '_' and '-', no folders.")
    asked = {name: variant_of(name, choices) for name, choices in variants.items()}
    choices = VariantChoices(
        steps=steps, repeat=repeat, images=images, inference_steps=inference_steps, size=size, frames=frames
    )
    path = Path(folder) if folder is not None else new_directory(Path(benches), f"{Path(target).name}-inference")
    # What is measured names the folder of one commit: a branch that moves makes it another measurement.
    located = {
        name: replace(variant, adapter=str(locate_adapter(variant.adapter).path)) if variant.adapter else variant
        for name, variant in asked.items()
    }
    model = model_content(target)
    contents = {
        name: {**model, "adapter": file_contents(Path(variant.adapter))} if variant.adapter else model
        for name, variant in located.items()
    }
    measured = measure_variants(target, located, choices, path, observer, contents)
    first = measured[0]
    alike = {
        one.name: likeness(one.images, first.images)
        for one in measured[1:]
        if one.images is not None and first.images is not None
    }
    study = inference_study(path.name, measured, choices, alike)
    write_text(path / "study.json", json.dumps(study, indent=2) + "\n")
    return InferenceComparison(path, measured, study)


def variants_named(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Variants as on the command line: `["plain:precision=fp32", "fast:precision=bf16,compile=regional"]`."""
    from foretune.config.yaml_files import parse

    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, settings = text.partition(":")
        pairs = [pair.partition("=") for pair in settings.split(",") if pair.strip()]
        keys = [key.strip() for key, _, _ in pairs]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise UserError(f"{text!r} gives {twice[0]} twice. Leave out one of the two.")
        if not name.strip() or name in found or any(not equals for _, equals, _ in pairs):
            raise UserError(
                f"{text!r} is not a variant with a name of its own. Write NAME:key=value,key=value, for example "
                "fast:precision=bf16,compile=regional"
            )
        # YAML reads `off` as false.
        found[name.strip()] = {
            key.strip(): value if key.strip() in ("compile", "adapter") else parse(value) for key, _, value in pairs
        }
    return found
