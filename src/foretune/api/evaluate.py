"""`evaluate`: how good a run's images are, beside those of the model it started from."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from foretune.api.process_state import torch_kept
from foretune.api.run import RunLike, paths_of
from foretune.api.start import import_libraries
from foretune.core.errors import Refused
from foretune.core.extras import require
from foretune.core.observer import Observer
from foretune.core.output_files import require_writable

if TYPE_CHECKING:
    from foretune.choices.quantize import DenoiserNumbers, EncoderNumbers
    from foretune.choices.training import CompileMode
    from foretune.core.values import Evaluation

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
SamplePrecision = Literal["fp32", "bf16", "fp16"]


def evaluate(
    runs: RunLike | Iterable[RunLike],
    *,
    against: str | None = None,
    prompts: Sequence[str] = (),
    num_prompts: int = 16,
    seeds: int = 2,
    first_seed: int = 0,
    steps: int | None = None,
    base_steps: int | None = None,
    size: int | str | None = None,
    guidance: float | None = None,
    held_out: int = 32,
    metrics: Sequence[str] = (),
    extractor: str = "vae",
    clip: str | None = None,
    device: DeviceName | None = None,
    precision: SamplePrecision | None = None,
    quantize: "DenoiserNumbers | None" = None,
    quantize_text_encoders: "EncoderNumbers | None" = None,
    compile: "CompileMode" = "off",  # noqa: A002 - the name of the lever
    merge: bool = False,
    batch: int | None = None,
    devices: int = 1,
    output: str | Path | None = None,
    observer: Observer | None = None,
) -> "tuple[Evaluation, ...]":
    """Samples runs and their base at fixed prompts and seeds, and measures in what they differ.

    Args:
        runs: run directories, or folders with a pipeline.
        against: model, folder or run to compare with; without it, what the run started from.
        prompts: what to sample; without them, captions of held-out images.
        num_prompts: at most so many held-out captions.
        seeds: images of each prompt.
        first_seed: the others follow it.
        steps: denoising steps; as the run validates, if left out.
        base_steps: of the base, if others.
        size: side in pixels, or a width and a height such as "416x240"; as trained, if left out.
        guidance: the pipeline's own if left out.
        held_out: at most so many held-out images.
        metrics: names, such as `("captions", "loss")`; all if left out.
        extractor: for FID and KID: vae, pixels, clip:WHERE or dino:WHERE.
        clip: CLIP score: a folder or a hub id.
        device: that of the run if left out; auto takes an accelerator if there is one.
        precision: dtype to compute with; that of the run if left out.
        quantize: quantise the base of both columns, as `quantize.denoiser`; as in the run if left out.
        quantize_text_encoders: as `quantize.text_encoders`; as in the run if left out.
        compile: `regional` compiles the repeated blocks to sample; the observer hears what that took and when it has
            paid.
        merge: add adapters to the weights.
        batch: images in one call of a model; as many as fit a usual amount of memory if left out.
        devices: each holds the whole model and makes its share of the images; everything else is on the first.
        output: folder to write to; RUN/quality if left out.
        observer: receives progress.
    """
    from foretune.quality.naming import check_subject

    paths = paths_of(runs)
    if output is not None:
        if len(paths) > 1:
            raise Refused(
                "--output is one folder, and there are several runs: each writes to its own directory without it"
            )
        require_writable(Path(output))
    for named in (*map(str, paths), *([] if against is None else [against])):
        check_subject(named)
    require("train", "Evaluating")
    observer = observer or Observer()
    import_libraries(observer, "foretune.quality.evaluating", warns_if_busy=True, device=device or "auto")
    from foretune.choices.inference import check_form
    from foretune.quality.evaluating import Evaluator
    from foretune.quality.request import EvaluationRequest

    request = EvaluationRequest(
        against=against,
        prompts=tuple(prompts),
        num_prompts=num_prompts,
        num_seeds=seeds,
        first_seed=first_seed,
        num_inference_steps=steps,
        base_num_inference_steps=base_steps,
        size_px=size,
        guidance_scale=guidance,
        num_held_out=held_out,
        metrics=tuple(metrics),
        extractor=extractor,
        clip=clip,
        device=device,
        precision=precision,
        quantize=quantize,
        quantize_text_encoders=quantize_text_encoders,
        compile=compile,
        merge=merge,
        batch_size=batch,
        devices=devices,
        output=None if output is None else Path(output),
    )
    check_form(request)
    evaluator = Evaluator(observer)
    with torch_kept():
        return tuple(evaluator.evaluate(str(path), request) for path in paths)


def too_few_steps(run: RunLike) -> str | None:
    """Why differences of a run must not be read as better or worse: it was hardly trained. None where it was."""
    from foretune.analyse.comparability import too_few_steps as found
    from foretune.analyse.run_data import read_run

    (path,) = paths_of(run)
    # What is evaluated may also be a model's folder, which was not trained here.
    return found([read_run(path)]) if (path / "experiment.yaml").is_file() else None
