"""From a run to files that other programs load, and the proof that they do.

A clean process, with diffusers and peft alone, loads what was exported; every tensor must have arrived, and the same
seed must give the same image as the trained model in this process. Adapters are written for, and proved on, the base as
it is on disk, also where they were trained on one in fewer bits.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor

from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter
from foretune.choices.model import PIPELINE_INDEX, on_hub
from foretune.core.errors import Refused, UserError
from foretune.core.output_files import beside, move
from foretune.core.thread_waiting import with_passive_waiting
from foretune.data.buckets import Bucket
from foretune.models.adapters import loads_by_pipeline, save_adapter
from foretune.models.copying import copy_model
from foretune.models.family import cast_as_loaded
from foretune.models.locating import open_family
from foretune.models.trainable import TrainableFamily
from foretune.record.run_directory import RunDirectory
from foretune.step.building import attach_method
from foretune.step.methods import METHODS, AppliedMethod
from foretune.step.methods.adapter import AppliedAdapter
from foretune.training.checkpoints import CheckpointStore
from foretune.training.sampling import SampleRequest, sample
from foretune.training.state import shown_weights

Kind = Literal["adapter", "full"]

_PROOF_STEPS = 2
_PROOF_PROMPT = "a small red circle on blue"


@dataclass(frozen=True)
class ExportProof:
    """What a clean process found."""

    num_tensors: int
    """Tensors in the exported file or files."""
    num_consumed: int
    """Tensors that are in the reloaded model, bit for bit."""
    max_pixel_difference: float
    """Largest difference between the images of the trained and of the reloaded model, in [0, 1]."""

    def __str__(self) -> str:
        return (
            f"{self.num_consumed} of {self.num_tensors} tensors arrived bit for bit; "
            f"same-seed images differ by {self.max_pixel_difference:g} at most"
        )

    @property
    def holds(self) -> bool:
        return self.num_consumed == self.num_tensors > 0 and self.max_pixel_difference == 0


class Proof(Protocol):
    """What was found when an export was read again; its text says it in a sentence."""

    @property
    def holds(self) -> bool: ...


Found = TypeVar("Found", bound=Proof)


@dataclass(frozen=True)
class Exported(Generic[Found]):
    """Files on disk, and what was found when they were loaded again."""

    path: Path
    """Where they are, if the proof holds; nothing is written if not."""
    proof: Found
    loading: str
    """Python that loads the export without Foretune, with {base} and {export} for where the two are; or where another
    program looks for it.
    """
    base: str = ""
    """The base model, as an argument of `from_pretrained`."""
    note: str | None = None
    """What else whoever uses it should know."""

    @property
    def how_to_load(self) -> str:
        """Python that loads the export from where it was written."""
        return self.loading.format(base=self.base, export=f'"{self.path}"')


class ExportBroken(UserError):
    """The exported files do not give the trained model back."""

    exit_code = 1


@dataclass(frozen=True)
class TrainedModel:
    """A run's model, loaded from its newest checkpoint."""

    family: TrainableFamily
    folder: Path
    method: AppliedMethod
    step: int
    experiment: Experiment


def load_trained(run: RunDirectory, dtype: torch.dtype = torch.float32, *, merge: bool = False) -> TrainedModel:
    """Base plus what was trained (its average, where there is one), in one type; merged, if asked for."""
    _, experiment, effective = run.read_experiment()
    folder = Path(effective["model_folder"])
    if not folder.is_dir():
        raise UserError(f"The base model of {run.path} is gone: {folder} does not exist.")
    family = open_family(folder)
    # A frozen base is loaded as a user of the export will load it; a trained one is rounded once, after training.
    trains_base = METHODS[experiment.method.kind].trains_base
    denoiser = family.load_denoiser(folder, torch.float32 if trains_base else dtype)
    method = attach_method(_without_read_adapters(experiment), family, denoiser)
    components = ("weights", "optimizer", "ema") if experiment.train.ema else ("weights", "optimizer")
    found = CheckpointStore(run.checkpoints, experiment.save.keep).read_newest(components)
    if found is None:
        raise UserError(f"{run.path} has no checkpoint yet. Run: foretune resume {run.path}")
    checkpoint, _ = found
    # An average is fp32 even where the weights that were trained are not; it is rounded once, below.
    for parameter in method.trained().values():
        parameter.data = parameter.data.float()
    method.load_trained(shown_weights(experiment.optimizer, checkpoint))
    if merge:
        assert isinstance(method, AppliedAdapter), "there is nothing to merge"
        method.merge()
    cast_as_loaded(denoiser, dtype, all_buffers=True)
    denoiser.eval()
    return TrainedModel(family, folder, method, checkpoint.step, experiment)


def _without_read_adapters(experiment: Experiment) -> Experiment:
    """What it started from is in the checkpoint by now, and what helped it train is no part of the result."""
    if not isinstance(experiment.method, Adapter):
        return experiment
    alone = experiment.method.model_copy(update={"start_from": None, "training_adapter": None})
    return experiment.model_copy(update={"method": alone})


def in_clean_process(question: Mapping[str, Any]) -> None:
    """Has a new process load the export and write down what arrived."""
    process = subprocess.run(
        [sys.executable, "-m", "foretune.training.reload_check"],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
        env=with_passive_waiting(os.environ),
    )
    if process.returncode != 0:
        last = process.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise ExportBroken(f"A clean process could not load the export: {last[0]} Nothing was written.")


def export(
    run: RunDirectory,
    output: Path,
    dtype: torch.dtype = torch.float32,
    *,
    merge: bool = False,
    follow_links: bool = False,
    reload: Callable[[dict[str, Any]], None] = in_clean_process,
) -> Exported[ExportProof]:
    """Writes the adapter, or the whole pipeline with the trained denoiser in it, and proves that it loads.

    `merge` makes an adapter part of the denoiser: the export is then a whole pipeline, too. `follow_links` also copies
    files of the base that links lead to elsewhere. `reload` answers what arrives where it is loaded again. An export
    is at its place once it is proved, and not before.
    """
    _, experiment, effective = run.read_experiment()
    if merge and not isinstance(experiment.method, Adapter):
        raise Refused(
            f"{run.path} trained every weight, so its export is a whole pipeline already and has nothing to merge. "
            f"Run: foretune export {run.path}, without --merge"
        )
    trained = load_trained(run, dtype, merge=merge)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(
            f"{output} is not an empty folder. Choose another folder: foretune export {run.path} --output DIR"
        )
    request = SampleRequest(
        prompts=(_PROOF_PROMPT,),
        seed=0,
        num_inference_steps=_PROOF_STEPS,
        size=Bucket.from_facts(effective),
        num_text_tokens=int(effective["num_text_tokens"]),
    )
    kind: Kind
    with beside(output) as unproved:
        if isinstance(trained.method, AppliedAdapter) and not merge:
            weights = trained.method.weights()
            save_adapter(trained.family, unproved, weights, trained.method.peft_config())
            kind = "adapter"
        else:
            weights = {name: t.detach() for name, t in trained.method.denoiser.state_dict().items()}
            _save_pipeline(trained, unproved, follow_links=follow_links)
            kind = "full"
        expected = sample(trained.family, _pipeline_around(trained, dtype), request)[0]
        proof = _prove(trained, kind, unproved, weights, expected, request, dtype, reload)
        if proof.holds:
            move(unproved, output)
    base = as_diffusers_finds(trained.experiment.model, trained.folder)
    return Exported(output, proof, _loading(trained, kind), base, quantised_note(experiment))


def quantised_note(experiment: Experiment) -> str | None:
    """Returns what to know about a base in fewer bits; None if it was trained as it is."""
    numbers = experiment.quantize.denoiser
    if numbers in ("none", "float8-training"):
        return None
    return (
        f"It was trained on a base in {numbers}. What was exported, and proved just now, goes with the base as it is "
        "on disk; the two differ by what the quantisation rounded away."
    )


def _pipeline_around(trained: TrainedModel, dtype: torch.dtype) -> Any:
    return trained.family.load_pipeline(
        trained.folder, dtype, **{trained.family.denoiser_part: trained.method.denoiser}
    )


def _loading(trained: TrainedModel, kind: Kind) -> str:
    family = trained.family
    pipeline = f"  pipe = diffusers.{family.pipeline_class().__name__}.from_pretrained"
    if kind == "full":
        return f"{pipeline}({{export}})"
    assert isinstance(trained.method, AppliedAdapter)
    if loads_by_pipeline(family, trained.method.peft_config()):
        return f"{pipeline}({{base}})\n  pipe.load_lora_weights({{export}})"
    part = f"pipe.{family.denoiser_part}"
    return f"{pipeline}({{base}})\n  peft.PeftModel.from_pretrained({part}, {{export}}, autocast_adapter_dtype=False)"


def as_diffusers_finds(model: str, folder: Path) -> str:
    """The base as another program knows it: names of the catalogue and of shipped models are Foretune's alone."""
    if (Path(model).expanduser() / PIPELINE_INDEX).is_file():
        return f'"{model}"'
    found = on_hub(model)
    if found is None:
        return f'"{folder}"'
    repo, revision = found
    return f'"{repo}"' + (f', revision="{revision}"' if revision else "")


def _save_pipeline(trained: TrainedModel, output: Path, *, follow_links: bool) -> None:
    """The base's folder with the denoiser replaced: it loads by itself, anywhere."""
    part = trained.family.denoiser_part

    def leaves_out(entry: Path) -> bool:
        is_other = entry.name == part or entry.name.startswith(".") or not (entry.is_dir() or entry.suffix == ".json")
        return entry.parent == trained.folder and is_other

    copy_model(trained.folder, output, leaves_out, follow_links=follow_links)
    denoiser: Any = trained.method.denoiser
    denoiser.save_pretrained(output / part, safe_serialization=True)


def _prove(
    trained: TrainedModel,
    kind: Kind,
    output: Path,
    weights: Mapping[str, Tensor],
    expected: np.ndarray[Any, np.dtype[np.float32]],
    request: SampleRequest,
    dtype: torch.dtype,
    reload: Callable[[dict[str, Any]], None],
) -> ExportProof:
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.safetensors"
        question = {
            "family": trained.family.name,
            "kind": kind,
            "base": str(trained.folder.resolve()),
            "export": str(output.resolve()),
            "dtype": str(dtype).removeprefix("torch."),
            "seed": request.seed,
            "prompt": request.prompts[0],
            "num_inference_steps": request.num_inference_steps,
            **request.size.facts(),
            "num_text_tokens": request.num_text_tokens,
            "answer": str(answer),
        }
        reload(question)
        found = load_file(answer)
    image = found.pop("image")
    return ExportProof(
        num_tensors=len(weights),
        num_consumed=sum(_arrived(name, tensor, found) for name, tensor in weights.items()),
        max_pixel_difference=float(np.abs(image - expected).max()),
    )


def _arrived(name: str, tensor: Tensor, found: Mapping[str, Any]) -> bool:
    """Whether the reloaded model holds this tensor; compared as fp32, which holds every smaller type exactly."""
    other = found.get(name)
    return other is not None and np.array_equal(other, tensor.float().cpu().numpy())
