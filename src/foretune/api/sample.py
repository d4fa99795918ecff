"""`sample`: same prompt, same seed, side by side."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.evaluate import DeviceName, SamplePrecision
from foretune.api.process_state import torch_kept
from foretune.api.run import RunLike, paths_of
from foretune.api.start import import_libraries
from foretune.core.errors import UserError
from foretune.core.extras import require
from foretune.core.observer import Observer
from foretune.core.output_files import require_writable

if TYPE_CHECKING:
    from foretune.choices.quantize import DenoiserNumbers, EncoderNumbers
    from foretune.choices.training import CompileMode


@dataclass(frozen=True)
class SideBySide:
    """A picture: a row for each prompt, a column for each model."""

    path: Path
    columns: tuple[str, ...]


def sample(
    base: str | None = None,
    *,
    runs: RunLike | Iterable[RunLike] = (),
    prompts: Sequence[str] = ("a small red circle on blue",),
    adapters: Sequence[str | Path] = (),
    full: Sequence[str | Path] = (),
    output: str | Path = "samples.png",
    seed: int = 0,
    steps: int = 28,
    size: int | str | None = None,
    frames: int | None = None,
    guidance: float | None = None,
    text_tokens: int | None = None,
    device: DeviceName | None = None,
    precision: SamplePrecision | None = None,
    quantize: "DenoiserNumbers | None" = None,
    quantize_text_encoders: "EncoderNumbers | None" = None,
    compile: "CompileMode" = "off",  # noqa: A002 - the name of the lever
    merge: bool = False,
    batch: int = 1,
    devices: int = 1,
    vae_tiling: bool | None = None,
    observer: Observer | None = None,
) -> SideBySide:
    """Samples a base model and its fine-tuned versions with the same prompts and seed, in one labelled picture.

    Args:
        base: the base model: catalogue name, hub id or local folder; that of the runs if left out.
        runs: runs to put beside it, as they are in their newest checkpoints.
        prompts: what to sample.
        adapters: adapters to put beside it: folders that `export` wrote, .safetensors files, or repositories of the
            Hub ("me/my-lora", "me/my-lora:FILE").
        full: exported full models to put beside it.
        output: the picture to write.
        seed: of the first noise.
        steps: denoising steps.
        size: side in pixels, or a width and a height such as "416x240"; as the first run was trained, or the model's
            own, if left out.
        frames: number of frames of clips; as the first run was trained, or the model's own, if left out.
        guidance: the pipeline's own if left out.
        text_tokens: most tokens of a prompt.
        device: that of the first run, or an accelerator if there is one, if left out.
        precision: dtype to compute with; that of the first run, or bf16 on an accelerator and fp32 on a CPU, if left
            out.
        quantize: quantise the base, as `quantize.denoiser` of an experiment; as in the first run if left out.
        quantize_text_encoders: quantise the text encoders, as `quantize.text_encoders`.
        compile: `regional` compiles the repeated blocks; the observer hears what that took and when it has paid.
        merge: add adapters to the weights.
        batch: images in one call of a model.
        devices: each holds the whole model and makes its share of the images.
        vae_tiling: decode in tiles, which needs less memory for large images; as in the first run, or off, if left
            out.
        observer: receives progress.
    """
    from foretune.choices.adapter import resolve_adapter
    from foretune.choices.model import resolve_model
    from foretune.quality.naming import check_subject

    run_paths = paths_of(runs)
    for run in run_paths:
        check_subject(run)
        if not (run / "experiment.yaml").is_file():
            raise UserError(f"{run} is a model, not a run. Run: foretune sample --base {run}")
    if base is not None:
        resolve_model(base)
    for adapter in adapters:
        resolve_adapter(adapter)
    path = Path(output)
    require_writable(path)
    require("train", "Sampling")
    observer = observer or Observer()
    import_libraries(observer, "foretune.quality.side_by_side", device=device or "auto")
    from foretune.quality.side_by_side import SideBySideRequest, side_by_side
    from foretune.training.sampling_setup import SamplingChoice

    request = SideBySideRequest(
        base=base,
        runs=tuple(run_paths),
        adapters=tuple(adapters),
        full=tuple(map(Path, full)),
        prompts=tuple(prompts),
        seed=seed,
        num_inference_steps=steps,
        size_px=size,
        num_frames=frames,
        guidance_scale=guidance,
        num_text_tokens=text_tokens,
        setup=SamplingChoice(
            device=device,
            precision=precision,
            quantize=quantize,
            compile=compile,
            merge=merge,
            batch_size=batch,
            devices=devices,
            text_encoders=quantize_text_encoders,
            vae_tiling=vae_tiling,
        ),
    )
    with torch_kept():
        return SideBySide(path, tuple(side_by_side(request, path, observer)))
