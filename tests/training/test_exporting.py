"""Exports load with diffusers alone, in another process, and give the trained model back; broken ones are caught."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from foretune.catalog import TRAINABLE
from foretune.choices.adapter import ADAPTER_FILE, PEFT_FILE
from foretune.core.errors import UserError
from foretune.models.adapters import save_adapter
from foretune.training import export_files, exporting, reload_check
from foretune.training.export_files import ExportBroken
from foretune.training.exporting import ExportProof, ExportRequest, as_diffusers_finds, export
from foretune.training.for_tools.export_file import export_file
from foretune.training.streamed_files import write_model
from foretune.training.train import Trained
from foretune.training.trained_run import TrainedTensors, load_trained
from tests.training.short_runs import METHODS, short_run

TinyPipeline = Callable[..., Path]

WITHOUT_VALIDATION = {"num_held_out": 0}


def trained_run(folder: Path, work: Path, method: str, **sections: Any) -> Trained:
    """A learning rate that moves every weight well beyond rounding."""
    trained = short_run(
        folder, work, method, optimizer={"lr": 2e-2}, validate=WITHOUT_VALIDATION, **{"train": {"steps": 2}} | sections
    )
    assert trained.record.outcome.status == "finished"
    return trained


def weights_file(directory: Path, family: str, method: str) -> Path:
    if method == "lora":
        return directory / (PEFT_FILE if family == "ddpm" else ADAPTER_FILE)
    return directory / ("unet" if family == "ddpm" else "transformer") / "diffusion_pytorch_model.safetensors"


def broken_adapter(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[dict[str, Any], dict[str, str]], object]) -> None:
    """Adapters are spoiled after they are written: `spoil` changes tensors and metadata in place."""

    def spoiled(*args: Any) -> Path:
        path = save_adapter(*args)
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
        tensors = load_file(path)
        spoil(tensors, metadata)
        save_file(tensors, path, metadata=metadata)
        return path

    monkeypatch.setattr(export_files, "save_adapter", spoiled)


@pytest.mark.takes_turns
@pytest.mark.usefixtures("processes_begin_at_once")
@pytest.mark.parametrize("family", ["sd3", "flux"])
@pytest.mark.parametrize("method", METHODS)
def test_a_clean_process_gets_the_trained_model_back(
    family: str, method: str, tmp_path: Path, tiny_pipeline: TinyPipeline, report_figure: Callable[[str], None]
) -> None:
    trained = trained_run(tiny_pipeline(family), tmp_path, method)
    exported = export(trained.run, tmp_path / "export")
    proof = exported.proof
    assert proof.num_consumed == proof.num_tensors >= trained.num_trained_tensors
    assert proof.max_pixel_difference == 0
    assert proof.holds
    share = f"{proof.num_consumed} of {proof.num_tensors} tensors"
    report_figure(f"{family} {method}: {share} arrived, images differ by {proof.max_pixel_difference:g}")
    loader = "from_pretrained" if method == "full" else "load_lora_weights"
    assert f'{loader}("{tmp_path / "export"}")' in exported.how_to_load


@pytest.mark.usefixtures("proof_in_this_process")
@pytest.mark.parametrize("method", METHODS)
def test_pixel_models(method: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = trained_run(tiny_pipeline("ddpm"), tmp_path, method)
    exported = export(trained.run, tmp_path / "export")
    assert exported.proof.holds
    assert exported.proof.num_tensors == trained.num_trained_tensors
    if method == "lora":
        export_call = f'peft.PeftModel.from_pretrained(pipe.unet, "{tmp_path / "export"}"'
        assert export_call in exported.how_to_load


@pytest.mark.takes_turns
@pytest.mark.usefixtures("proof_in_this_process")
@pytest.mark.parametrize("family", ["ddpm", "sd3", "flux", "wan"])
@pytest.mark.parametrize("method", METHODS)
def test_exports_in_bf16(family: str, method: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """Buffers count too: Stable Diffusion 3 keeps its positions in one, which a reader rounds. Wan has fp32 parts."""
    trained = trained_run(tiny_pipeline(family), tmp_path, method, train={"steps": 1})
    assert export(trained.run, tmp_path / "export", ExportRequest(dtype=torch.bfloat16)).proof.holds
    file = weights_file(tmp_path / "export", family, method)
    keeps_fp32 = TRAINABLE[family].keeps_fp32 and method == "full"
    kinds = {torch.bfloat16, torch.float32} if keeps_fp32 else {torch.bfloat16}
    assert {tensor.dtype for tensor in load_file(file).values()} == kinds


@pytest.mark.usefixtures("proof_in_this_process")
@pytest.mark.parametrize("method", METHODS)
def test_an_fp32_average_of_bf16_weights_is_exported_unrounded(
    method: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    train = {"steps": 2, "precision": "bf16", "weight_dtype": "bf16", "ema": {"decay": 0.9}}
    trained = short_run(
        tiny_pipeline("flux"),
        tmp_path,
        method,
        train=train,
        optimizer={"lr": 2e-2, "compensation": "kahan", "betas": [0.9, 0.99]},
        validate={"num_held_out": 1, "prompts": ["a circle"], "num_inference_steps": 1},
    )
    assert trained.record.outcome.status == "finished"
    assert export(trained.run, tmp_path / "export", ExportRequest(dtype=torch.float32)).proof.holds
    tensors = load_file(weights_file(tmp_path / "export", "flux", method)).values()
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in tensors)


def test_a_proof_holds_where_every_tensor_arrived_and_no_pixel_differs() -> None:
    """Each alone: an image can be the same by chance though a tensor is lost, and the other way round."""
    assert ExportProof(num_tensors=10, num_consumed=10, max_pixel_difference=0.0).holds
    assert not ExportProof(num_tensors=10, num_consumed=9, max_pixel_difference=0.0).holds
    assert not ExportProof(num_tensors=10, num_consumed=10, max_pixel_difference=1e-6).holds
    assert not ExportProof(num_tensors=0, num_consumed=0, max_pixel_difference=0.0).holds


@pytest.mark.takes_turns
@pytest.mark.usefixtures("proof_in_this_process")
@pytest.mark.parametrize("family", ["sd3", "flux"])
def test_control_an_adapter_without_its_alpha_is_caught(
    family: str, tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_adapter(monkeypatch, lambda _, metadata: metadata.pop("lora_adapter_metadata"))
    trained = trained_run(tiny_pipeline(family), tmp_path, "lora")
    with pytest.raises(ExportBroken, match="its alpha is unknown"):
        export(trained.run, tmp_path / "export")
    # Every tensor arrives; only the image shows that alpha is taken to be the rank.
    monkeypatch.setattr(export_files.AdapterFiles, "num_read_back", lambda files, _: files.num_tensors)
    proof = export(trained.run, tmp_path / "export").proof
    assert proof.num_consumed == proof.num_tensors
    assert proof.max_pixel_difference is not None
    assert proof.max_pixel_difference > 0
    assert not proof.holds
    assert not left_behind(tmp_path)


def left_behind(folder: Path) -> list[str]:
    """What an export that was not proved left, under its name or another."""
    return [path.name for path in folder.iterdir() if "export" in path.name]


def test_an_export_whose_proof_crashes_leaves_nothing(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = trained_run(tiny_pipeline("flux"), tmp_path, "lora", train={"steps": 1})
    seen: list[list[str]] = []

    def crash(question: dict[str, Any]) -> None:
        seen.append([path.name for path in Path(question["export"]).iterdir()])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(trained.run, tmp_path / "export", reload=crash)
    assert seen == [[ADAPTER_FILE]]
    assert not left_behind(tmp_path)


def passes(trained: Trained, output: Path) -> bool:
    try:
        return export(trained.run, output).proof.holds
    except ExportBroken:
        return False


def first_b(tensors: dict[str, Any]) -> str:
    return next(name for name in tensors if name.endswith("lora_B.weight"))


@pytest.mark.takes_turns
@pytest.mark.filterwarnings("ignore:Found missing adapter keys")
@pytest.mark.usefixtures("proof_in_this_process")
@pytest.mark.parametrize("family", ["ddpm", "sd3", "flux"])
def test_control_an_adapter_that_lacks_a_tensor_is_caught(
    family: str, tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some loaders stumble over it, others leave the tensor as it was made: neither passes for an export."""
    broken_adapter(monkeypatch, lambda tensors, _: tensors.pop(first_b(tensors)))
    trained = trained_run(tiny_pipeline(family), tmp_path, "lora")
    assert not passes(trained, tmp_path / "export")


@pytest.mark.takes_turns
@pytest.mark.usefixtures("proof_in_this_process")
@pytest.mark.parametrize("family", ["ddpm", "sd3", "flux"])
def test_control_an_adapter_with_another_tensor_is_caught(
    family: str, tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_adapter(monkeypatch, lambda tensors, _: tensors[first_b(tensors)].mul_(1.5))
    trained = trained_run(tiny_pipeline(family), tmp_path, "lora")
    proof = export(trained.run, tmp_path / "export").proof
    assert proof.num_consumed == proof.num_tensors - 1
    assert proof.max_pixel_difference is None
    assert not proof.holds


@pytest.mark.usefixtures("proof_in_this_process")
def test_control_a_full_export_of_the_base_is_caught(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the trained weights had never been put in place."""
    trained = trained_run(tiny_pipeline("flux"), tmp_path, "full")
    save = export_files.save_denoiser

    def save_base(tensors: TrainedTensors, directory: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(TrainedTensors, "__getitem__", lambda one, name: one._of_base(name))
            save(tensors, directory)

    monkeypatch.setattr(export_files, "save_denoiser", save_base)
    monkeypatch.setattr(export_files.PipelineFiles, "num_read_back", lambda files, _: files.num_tensors)
    proof = export(trained.run, tmp_path / "export").proof
    assert proof.max_pixel_difference is not None
    assert proof.max_pixel_difference > 0
    assert not proof.holds


@pytest.mark.parametrize("method", METHODS)
def test_control_files_with_other_tensors_are_caught_without_images(
    method: str, tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the trained weights had never been put in place: no image is sampled of what is known to be broken."""
    trained = trained_run(tiny_pipeline("flux"), tmp_path, method, train={"steps": 1})
    broken_adapter(monkeypatch, lambda tensors, _: tensors[first_b(tensors)].mul_(1.5))
    monkeypatch.setattr(
        export_files,
        "write_model",
        lambda folder, forms, read: write_model(folder, forms, lambda name: read(name) * 1.5),
    )
    asked: list[Any] = []
    proof = export(trained.run, tmp_path / "export", reload=asked.append).proof
    assert proof.num_consumed < proof.num_tensors
    assert (proof.max_pixel_difference, asked) == (None, [])
    assert not proof.holds
    assert not left_behind(tmp_path)


def test_what_cannot_be_loaded_is_said(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = trained_run(tiny_pipeline("flux"), tmp_path, "lora")

    def fail(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "Traceback ...\nValueError: unknown keys\n")

    monkeypatch.setattr(exporting, "subprocess", SimpleNamespace(run=fail))
    with pytest.raises(ExportBroken, match=r"could not load .*: ValueError: unknown keys") as broken:
        export(trained.run, tmp_path / "export")
    assert broken.value.exit_code == 1
    assert not left_behind(tmp_path)


@pytest.mark.usefixtures("proof_in_this_process")
def test_a_full_export_is_a_whole_pipeline(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("sd3")
    trained = trained_run(folder, tmp_path, "full", train={"steps": 1})
    export(trained.run, tmp_path / "export")
    exported = {path.relative_to(tmp_path / "export").as_posix() for path in (tmp_path / "export").rglob("*.*")}
    assert exported == {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    pipeline = DiffusionPipeline.from_pretrained(tmp_path / "export", use_safetensors=True)
    weights = load_file(trained.run.checkpoints / "step-000000001" / "weights.safetensors")
    state = pipeline.transformer.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.items())


@pytest.mark.usefixtures("proof_in_this_process")
def test_an_export_holds_nothing_that_links_of_the_base_lead_to(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tmp_path / "base"
    shutil.copytree(tiny_pipeline("sd3"), folder)
    (tmp_path / "id_rsa").write_text("private")
    (folder / "vae" / "notes.txt").symlink_to(tmp_path / "id_rsa")
    trained = trained_run(folder, tmp_path, "full", train={"steps": 1})
    with pytest.raises(UserError, match=r"notes\.txt leads to .*id_rsa, outside of .*base.*--follow-links"):
        export(trained.run, tmp_path / "export")
    assert not left_behind(tmp_path)
    export(trained.run, tmp_path / "export", ExportRequest(follow_links=True))
    assert (tmp_path / "export" / "vae" / "notes.txt").read_text() == "private"


@pytest.mark.parametrize("method", METHODS)
def test_the_moving_average_is_what_is_exported(method: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = trained_run(tiny_pipeline("flux"), tmp_path, method, train={"steps": 2, "ema": {"decay": 0.5}})
    checkpoint = trained.run.checkpoints / "step-000000002"
    averages, weights = (load_file(checkpoint / f"{name}.safetensors") for name in ("ema", "weights"))
    loaded = load_trained(trained.run).method.trained()
    assert all(torch.equal(loaded[name], average) for name, average in averages.items())
    assert any(not torch.equal(weights[name], average) for name, average in averages.items())


def weights_gone(folder: Path, work: Path) -> Callable[[], None]:
    """A copy of a base, and what removes the weights of its denoiser."""
    shutil.copytree(folder, work / "base")

    def remove() -> None:
        for path in (work / "base").glob("transformer/*.safetensors"):
            path.unlink()

    return remove


def answered(**answer: Any) -> Callable[[dict[str, Any]], None]:
    """A clean process that gives this answer."""

    def answer_it(question: dict[str, Any]) -> None:
        Path(question["answer"]).write_text(json.dumps(answer))

    return answer_it


@pytest.mark.parametrize("format_", ["diffusers", "comfyui", "kohya"])
def test_an_adapter_is_exported_without_its_base(
    format_: Any, tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base's weights are gone, and no tensor of the size of its layers is made."""
    remove = weights_gone(tiny_pipeline("flux"), tmp_path)
    trained = trained_run(tmp_path / "base", tmp_path, "lora", train={"steps": 1})
    remove()
    if format_ == "diffusers":
        proof = export(trained.run, tmp_path / "export", reload=answered(why_not="there is no base")).proof
        assert proof.num_consumed == proof.num_tensors > 0
        tensors = load_file(tmp_path / "export" / ADAPTER_FILE)
        checkpoint = load_file(trained.run.checkpoints / "step-000000001" / "weights.safetensors")
        assert {tuple(t.shape) for t in tensors.values()} == {tuple(t.shape) for t in checkpoint.values()}
    else:
        made = export_file(trained.run, tmp_path / "file.safetensors", format_)
        assert made.proof.holds
        assert made.path.is_file()


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_an_export_is_written_where_images_cannot_be_compared(
    kind: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    """Hours of training are not lost because the check needs more memory than there is."""
    trained = trained_run(tiny_pipeline("flux"), tmp_path, kind, train={"steps": 1})
    output = tmp_path / "export"
    proof = export(trained.run, output, reload=answered(why_not="the model takes 22 GiB")).proof
    assert proof.holds
    assert proof.num_consumed == proof.num_tensors
    assert str(proof).endswith("images were not compared: the model takes 22 GiB")
    expected = f"foretune export {trained.run.path} --check-only --output {output} --precision fp32 --device cpu"
    assert proof.how_to_compare == expected
    assert any(output.iterdir())
    compared = export(trained.run, output, ExportRequest(check_only=True), reload=reload_check.check).proof
    assert (compared.holds, compared.max_pixel_difference, compared.how_to_compare) == (True, 0, None)


def test_a_process_that_the_system_ends_costs_the_check_and_not_the_export(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = trained_run(tiny_pipeline("flux"), tmp_path, "lora", train={"steps": 1})

    def killed(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, -9, "", "")

    monkeypatch.setattr(exporting, "subprocess", SimpleNamespace(run=killed))
    proof = export(trained.run, tmp_path / "export").proof
    assert proof.holds
    assert proof.why_no_images is not None
    assert "host memory ran out" in proof.why_no_images


def test_nothing_to_check(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = trained_run(tiny_pipeline("flux"), tmp_path, "lora", train={"steps": 1})
    with pytest.raises(UserError, match=r"There is no export in .*nothing\. Run: foretune export"):
        export(trained.run, tmp_path / "nothing", ExportRequest(check_only=True))


def test_images_are_compared_at_a_small_size(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """In the run's numbers and on its device, however large the images are that it was trained on."""
    trained = trained_run(
        tiny_pipeline("flux"), tmp_path, "lora", train={"steps": 1, "precision": "bf16"}, data={"resolution": 512}
    )
    asked: list[dict[str, Any]] = []

    def ask(question: dict[str, Any]) -> None:
        asked.append(question)
        answered(num_consumed=0, max_pixel_difference=0.0)(question)

    assert not export(trained.run, tmp_path / "export", reload=ask).proof.holds, "no tensor arrived"
    (question,) = asked
    assert (question["size_px"], question["precision"], question["device"]) == ([256, 256], "bf16", "cpu")
    assert question["num_inference_steps"] == 2


def test_a_model_that_does_not_fit_is_tried_as_in_training(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free memory is less than the dense model takes; quantised, it is tried. Without a quantised base it is not."""
    monkeypatch.setattr(reload_check, "free_host_bytes", lambda: 1000)
    sections: dict[str, Any] = {"train": {"steps": 1, "precision": "bf16"}, "quantize": {"denoiser": "int8"}}
    trained = trained_run(tiny_pipeline("flux"), tmp_path, "lora", **sections)
    proof = export(trained.run, tmp_path / "export", reload=reload_check.check).proof
    assert (proof.holds, proof.max_pixel_difference) == (True, 0)
    dense = trained_run(tiny_pipeline("flux"), tmp_path / "dense", "lora", train={"steps": 1})
    proof = export(dense.run, tmp_path / "dense" / "export", reload=reload_check.check).proof
    assert proof.why_no_images is not None
    assert "1000 B of memory are free" in proof.why_no_images


def test_a_folder_in_use_is_left_alone(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = trained_run(tiny_pipeline("flux"), tmp_path, "lora", train={"steps": 1})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("full", "file"):
        with pytest.raises(UserError, match="is not an empty folder"):
            export(trained.run, tmp_path / name)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]


def test_a_run_without_checkpoint(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = trained_run(tiny_pipeline("flux"), tmp_path, "lora", train={"steps": 1})
    (checkpoint,) = trained.run.checkpoints.iterdir()
    checkpoint.rename(tmp_path / "gone")
    with pytest.raises(UserError, match=rf"has no checkpoint yet\. Run: foretune resume {trained.run.path}"):
        export(trained.run, tmp_path / "export")


@pytest.mark.parametrize(
    ("proof", "holds"),
    [
        (ExportProof(3, 3, 0.0), True),
        (ExportProof(3, 2, 0.0), False),
        (ExportProof(3, 3, 1e-7), False),
        (ExportProof(0, 0, 0.0), False),
    ],
)
def test_when_a_proof_holds(proof: ExportProof, holds: bool) -> None:
    assert proof.holds is holds


def test_the_base_is_named_as_diffusers_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed after an export is there to be typed, where nobody knows our names for models."""
    here = tmp_path / "base"
    here.mkdir()
    (here / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    monkeypatch.chdir(tmp_path)
    assert as_diffusers_finds("base", here) == '"base"'
    assert as_diffusers_finds("./other/base", here) == f'"{here}"'
    assert as_diffusers_finds("foretune-shapes", here) == f'"{here}"'
    assert as_diffusers_finds("flux.1-dev", here).startswith('"black-forest-labs/FLUX.1-dev"')
    assert as_diffusers_finds("some/model@abc", here) == '"some/model", revision="abc"'
