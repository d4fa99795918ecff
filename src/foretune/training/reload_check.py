"""Run in a clean process: loads an export the way any user of diffusers and peft would, samples, and compares.

The export is loaded first, by diffusers and peft alone: the family only names the pipeline and its arguments. Then the
trained model is loaded from the run's checkpoint and samples the same prompt with the same seed. One of them is in
memory at a time, at a small size and in the numbers that the request names.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretune.accelerator.memory import free_memory
from foretune.choices.quantize import Quantize
from foretune.core.memory_errors import lacking_memory
from foretune.core.memory_limit import free_host_bytes
from foretune.core.units import bytes_text
from foretune.data.buckets import Bucket
from foretune.models.adapters import ADAPTER_NAME, adapter_state, load_adapter, read_weights
from foretune.models.family import Conditioning, cast_as_loaded
from foretune.models.locating import open_family
from foretune.models.stored_weights import StoredWeights
from foretune.models.trainable import TrainableFamily
from foretune.record.run_directory import RunDirectory
from foretune.step.quantizing import denoiser_quantizer
from foretune.step.quantizing.stand_ins import dense_stand_ins
from foretune.training.sampling import Pixels, SampleRequest, sample
from foretune.training.sampling_setup import SamplingSetup
from foretune.training.trained_run import TrainedRun


class DoesNotFit(Exception):
    """The model is larger than the memory that is free."""


def check(question: dict[str, Any]) -> None:
    """Answers how many tensors arrived and how far the images differ, or why this could not be found out."""
    answer: dict[str, Any] = {}
    for setup in _setups(question):
        # Outside of the handlers, which refer to the tensors of a failed attempt.
        free_memory()
        try:
            answer = _compare(question, setup)
            break
        except DoesNotFit as reason:
            answer = {"why_not": str(reason)}
        except Exception as error:
            if lacking_memory(error) is None:
                raise
            answer = {"why_not": f"{setup.device} ran out of memory while the model was loaded or sampled"}
    Path(question["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def _setups(question: Mapping[str, Any]) -> Iterable[SamplingSetup]:
    """The base as it is on disk, which is what users of the export load; quantised as in training where that fails."""
    setup = SamplingSetup(
        device=torch.device(question["device"]),
        precision=question["precision"],
        quantize=Quantize.model_validate(question["quantize"]),
        vae_tiling=question["vae_tiling"],
    )
    yield replace(setup, quantize=setup.quantize.model_copy(update={"denoiser": "none"}))
    if setup.quantize.denoiser != "none":
        yield setup


def _compare(question: Mapping[str, Any], setup: SamplingSetup) -> dict[str, Any]:
    base, export = Path(question["base"]), Path(question["export"])
    is_adapter = question["kind"] == "adapter"
    family = open_family(base)
    _require_room(family, setup)
    request = SampleRequest(
        prompts=(question["prompt"],),
        seed=question["seed"],
        num_inference_steps=question["num_inference_steps"],
        size=Bucket.from_facts(question),
        num_text_tokens=question["num_text_tokens"],
    )
    folder = base if is_adapter else export
    texts = setup.encode(family, folder, request.prompts, request.num_text_tokens)
    adapter_dtype = None
    if is_adapter:
        denoiser = setup.load_base(family, base)
        pipeline = setup.pipeline(family, base, denoiser)
        with dense_stand_ins(denoiser):
            load_adapter(family, pipeline, export)
        state = adapter_state(denoiser)
        arrived = list(_arrived(state, read_weights(family, export)))
        adapter_dtype = next(iter(state.values())).dtype
        del state
    else:
        denoiser, arrived = _reloaded(family, export, setup)
        pipeline = setup.pipeline(family, export, denoiser)
    image = _sampled(family, pipeline, setup, request, texts)
    del pipeline, denoiser
    free_memory()
    if not is_adapter:
        texts = setup.encode(family, base, request.prompts, request.num_text_tokens)
    trained = _trained(question, setup, adapter_dtype)
    expected = _sampled(family, setup.pipeline(family, base, trained), setup, request, texts)
    return {
        "num_consumed": sum(arrived),
        "max_pixel_difference": float(np.abs(image - expected).max()),
        "numbers": setup.quantize.denoiser,
    }


def _require_room(family: TrainableFamily, setup: SamplingSetup) -> None:
    """Raises before a load that cannot succeed, which would take minutes or the machine's other programs."""
    if setup.quantize.denoiser != "none":
        return
    needed = sum(tensor.nbytes for tensor in family.denoiser_on_meta(setup.dtype).parameters())
    free = torch.cuda.mem_get_info(setup.device)[0] if setup.device.type == "cuda" else free_host_bytes()
    if free is not None and needed > free:
        where = "memory" if setup.device.type == "cpu" else f"memory of {setup.device}"
        raise DoesNotFit(f"the model takes {bytes_text(needed)}, and {bytes_text(free)} of {where} are free")


def _reloaded(family: TrainableFamily, export: Path, setup: SamplingSetup) -> tuple[nn.Module, list[bool]]:
    """A whole model as diffusers loads it, compared with its files, and moved to the device layer by layer."""
    part = export / family.denoiser_part
    loader: Any = family.denoiser_class()
    denoiser: nn.Module = loader.from_pretrained(part, dtype=setup.dtype, use_safetensors=True)
    stored = StoredWeights.of(part)
    assert stored is not None, "diffusers has loaded these files"
    arrived = list(_arrived(denoiser.state_dict(), stored))
    quantizer = denoiser_quantizer(setup.quantize, family, denoiser, setup.device)
    for name in [name for name, _ in denoiser.named_modules()]:
        if quantizer is not None:
            quantizer.take(denoiser, name, setup.device)
        denoiser.get_submodule(name)._apply(lambda tensor: tensor.to(setup.device), recurse=False)
    return denoiser, arrived


def _trained(question: Mapping[str, Any], setup: SamplingSetup, adapter_dtype: torch.dtype | None) -> nn.Module:
    """The trained model, from the checkpoint: rounded as in the export, and then as the one that was reloaded."""
    run = TrainedRun.open(RunDirectory.open(Path(question["run"])))
    exported = getattr(torch, question["dtype"])
    trained = run.load(setup.dtype, setup.device, setup.quantize, merge=question["merge"], adapter_dtype=exported)
    if adapter_dtype is not None:
        cast_as_loaded(trained.method.denoiser, adapter_dtype, only=ADAPTER_NAME)
    return trained.method.denoiser


def _arrived(state: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> Iterator[bool]:
    """Whether each stored tensor is in the model, in the dtype that the loader gave it."""
    for name in stored:
        found = state.get(name)
        yield found is not None and torch.equal(found.cpu(), stored[name].to(found.dtype))


def _sampled(
    family: TrainableFamily,
    pipeline: Any,
    setup: SamplingSetup,
    request: SampleRequest,
    texts: Mapping[str, Conditioning],
) -> Pixels:
    def batched(text: str) -> Conditioning:
        return {name: tensor[None] for name, tensor in texts[text].items()}

    with setup.sampling():
        if not texts:
            return sample(family, pipeline, request)[0]
        return sample(family, pipeline, request, [batched(text) for text in request.prompts], batched(""))[0]


if __name__ == "__main__":
    check(json.load(sys.stdin))
