"""From a run to files that other programs load, and the proof that they do.

What was written is read back and compared with what was trained. Then a clean process loads it with diffusers and peft
alone, and samples the same image as the trained model. Adapters are written for, and proved on, the base as it is on
disk, also where they were trained on one in fewer bits.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from foretune.choices.experiment import Experiment
from foretune.choices.model import PIPELINE_INDEX, on_hub
from foretune.choices.training import Precision
from foretune.core.errors import Refused, UserError
from foretune.core.output_files import beside, move
from foretune.core.thread_waiting import with_passive_waiting
from foretune.data.buckets import Bucket
from foretune.record.run_directory import RunDirectory
from foretune.step.precision import PrecisionPolicy
from foretune.training.export_files import AdapterFiles, ExportBroken, PipelineFiles
from foretune.training.sampling_setup import SamplingChoice, SamplingSetup, sampling_setup
from foretune.training.sizes import small_size
from foretune.training.trained_run import TrainedRun

_PROOF_STEPS = 2
_PROOF_PROMPT = "a small red circle on blue"
_NAMES: dict[torch.dtype, Precision] = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_ROUNDING = 2 / 255
"""How far images may differ on an accelerator, which may add up in another order: two steps of an 8-bit image."""


@dataclass(frozen=True)
class ExportProof:
    """What was found when an export was read again."""

    num_tensors: int
    """Tensors in the exported file or files."""
    num_consumed: int
    """Tensors that are in the reloaded model, bit for bit; in the files, if images were not compared."""
    max_pixel_difference: float | None
    """Largest difference between the images of the trained and of the reloaded model, in [0, 1]; None if they were not
    compared.
    """
    tolerance: float = 0.0
    """How large that difference may be."""
    why_no_images: str | None = None
    """Why images were not compared."""
    how_to_compare: str | None = None
    """The command that compares them."""

    def __str__(self) -> str:
        tensors = f"{self.num_consumed} of {self.num_tensors} tensors arrived bit for bit; "
        if self.max_pixel_difference is None:
            return tensors + f"images were not compared: {self.why_no_images}"
        return tensors + f"same-seed images differ by {self.max_pixel_difference:g} at most"

    @property
    def holds(self) -> bool:
        is_whole = self.num_consumed == self.num_tensors > 0
        return is_whole and (self.max_pixel_difference is None or self.max_pixel_difference <= self.tolerance)


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


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """How a run is exported."""

    dtype: torch.dtype | None = None
    """Of the files; None is as the run computes."""
    merge: bool = False
    """Whether an adapter becomes part of the denoiser: the export is then a whole pipeline, too."""
    follow_links: bool = False
    """Whether files of the base that links lead to elsewhere are copied, too."""
    check_only: bool = False
    """Whether an export that was written before is read again, and nothing is written."""
    device: str | None = None
    """Where images are compared; None is as the run was trained."""


def in_clean_process(question: Mapping[str, Any]) -> None:
    """Has a new process load the export and write down what it found."""
    process = subprocess.run(
        [sys.executable, "-m", "foretune.training.reload_check"],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
        env=with_passive_waiting(os.environ),
    )
    if process.returncode == -getattr(signal, "SIGKILL", 9):
        why = "the system ended the process that loads the export, probably because host memory ran out"
        Path(question["answer"]).write_text(json.dumps({"why_not": why}), encoding="utf-8")
    elif process.returncode != 0:
        last = process.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise ExportBroken(f"A clean process could not load the export: {last[0]} Nothing was written.")


def export(
    run: RunDirectory,
    output: Path,
    request: ExportRequest | None = None,
    *,
    reload: Callable[[dict[str, Any]], None] = in_clean_process,
) -> Exported[ExportProof]:
    """Writes the adapter, or the whole pipeline with the trained denoiser in it, and proves that it loads.

    `reload` answers what arrives where it is loaded again. An export is at its place once it is proved, and not before.
    An adapter is exported without its base; the tensors of a whole model are written one at a time.
    """
    request = request or ExportRequest()
    trained = TrainedRun.open(run)
    if request.merge and not trained.is_adapter:
        raise Refused(
            f"{run.path} trained every weight, so its export is a whole pipeline already and has nothing to merge. "
            f"Run: foretune export {run.path}, without --merge"
        )
    _require_place(run, output, request)
    dtype = request.dtype or PrecisionPolicy.of(trained.experiment.train).compute_dtype
    is_adapter = trained.is_adapter and not request.merge
    choice = SamplingChoice(device=request.device, precision=_precision_of_check(trained, dtype, is_adapter=is_adapter))
    setup = sampling_setup(choice, trained.experiment)
    files: AdapterFiles | PipelineFiles
    files = AdapterFiles(trained, dtype) if is_adapter else PipelineFiles(trained, dtype, merge=request.merge)
    loading = files.loading()
    if request.check_only:
        proof = _prove(trained, files, output, output, setup, request, reload)
    else:
        with beside(output) as unproved:
            files.write(unproved, follow_links=request.follow_links)
            proof = _prove(trained, files, unproved, output, setup, request, reload)
            if proof.holds:
                move(unproved, output)
    base = as_diffusers_finds(trained.experiment.model, trained.folder)
    return Exported(output, proof, loading, base, quantised_note(trained.experiment))


def _require_place(run: RunDirectory, output: Path, request: ExportRequest) -> None:
    is_empty = not output.exists() or (output.is_dir() and not any(output.iterdir()))
    if request.check_only and is_empty:
        raise UserError(f"There is no export in {output}. Run: foretune export {run.path} --output {output}")
    if not request.check_only and not is_empty:
        raise UserError(
            f"{output} is not an empty folder. Choose another folder: foretune export {run.path} --output DIR"
        )


def _precision_of_check(trained: TrainedRun, dtype: torch.dtype, *, is_adapter: bool) -> Precision:
    """Returns the numbers to sample in: those of the run; those of a whole model's files where they have fewer bits."""
    if is_adapter or dtype == torch.float32:
        return trained.experiment.train.precision
    return _NAMES[dtype]


def _prove(
    trained: TrainedRun,
    files: AdapterFiles | PipelineFiles,
    written: Path,
    output: Path,
    setup: SamplingSetup,
    request: ExportRequest,
    reload: Callable[[dict[str, Any]], None],
) -> ExportProof:
    """Reads the files back; if they are whole, has images compared. The run's tensors are freed in between."""
    num_tensors, num_equal = files.num_tensors, files.num_read_back(written)
    dtype, is_adapter = files.dtype, isinstance(files, AdapterFiles)
    files.close()
    if num_equal != num_tensors:
        return ExportProof(num_tensors, num_equal, None, why_no_images="the files are not what was trained")
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        size = small_size(trained.family, Bucket.from_facts(trained.effective))
        question = {
            "run": str(trained.run.path.resolve()),
            "kind": "adapter" if is_adapter else "full",
            "merge": request.merge,
            "base": str(trained.folder.resolve()),
            "export": str(written.resolve()),
            "dtype": str(dtype).removeprefix("torch."),
            "device": str(setup.device),
            "precision": setup.precision,
            "quantize": setup.quantize.model_dump(mode="json"),
            "vae_tiling": setup.vae_tiling,
            "seed": 0,
            "prompt": _PROOF_PROMPT,
            "num_inference_steps": _PROOF_STEPS,
            **size.facts(),
            "num_text_tokens": int(trained.effective["num_text_tokens"]),
            "answer": str(answer),
        }
        reload(question)
        found = json.loads(answer.read_text(encoding="utf-8"))
    if "why_not" in found:
        options = f"--precision {_NAMES[dtype]}{' --merge' if request.merge else ''}"
        return ExportProof(
            num_tensors,
            num_equal,
            None,
            why_no_images=found["why_not"],
            how_to_compare=f"foretune export {trained.run.path} --check-only --output {output} {options} --device cpu",
        )
    return ExportProof(
        num_tensors,
        num_consumed=int(found["num_consumed"]),
        max_pixel_difference=float(found["max_pixel_difference"]),
        tolerance=0.0 if setup.device.type == "cpu" else _ROUNDING,
    )


def quantised_note(experiment: Experiment) -> str | None:
    """Returns what to know about a base in fewer bits; None if it was trained as it is."""
    numbers = experiment.quantize.denoiser
    if numbers in ("none", "float8-training"):
        return None
    return (
        f"It was trained on a base in {numbers}. What was exported, and proved just now, goes with the base as it is "
        "on disk; the two differ by what the quantisation rounded away."
    )


def as_diffusers_finds(model: str, folder: Path) -> str:
    """The base as another program knows it: names of the catalogue and of shipped models are Foretune's alone."""
    if (Path(model).expanduser() / PIPELINE_INDEX).is_file():
        return f'"{model}"'
    found = on_hub(model)
    if found is None:
        return f'"{folder}"'
    repo, revision = found
    return f'"{repo}"' + (f', revision="{revision}"' if revision else "")
