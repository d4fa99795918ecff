"""Single-file checkpoints become folders that diffusers loads, with every tensor of the file, bit for bit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import foretune as ft
from foretune.catalog.tool_names import original_layout
from foretune.core.errors import Refused, UserError
from foretune.models.locating import open_family
from foretune.training.for_tools.import_file import ImportedCheckpoint, import_file
from foretune.training.for_tools.original import to_original
from foretune.training.for_tools.single_file import write_single_file
from tests.training.for_tools.test_single_file import READABLE
from tests.training.for_tools.trained_models import trained

TinyPipeline = Callable[..., Path]


def denoiser_file(folder: Path, path: Path, prefix: str = "") -> dict[str, Tensor]:
    """Writes a file with another denoiser of this model in its original layout; returns it by diffusers' names."""
    model = trained(folder)
    layout = original_layout(model.family.name, model.family.architecture.denoiser)
    assert layout is not None
    state = {name: tensor.detach() for name, tensor in model.denoiser.state_dict().items()}
    file = {prefix + name: tensor.contiguous().clone() for name, tensor in to_original(state, layout).items()}
    save_file(file, path)
    return state


def imported(file: Path, base: Path, output: Path) -> ImportedCheckpoint:
    return import_file(file, open_family(base), base, output)


def assert_denoiser(folder: Path, wanted: dict[str, Tensor]) -> None:
    found = open_family(folder).load_denoiser(folder, torch.float32).state_dict()
    assert sorted(found) == sorted(wanted)
    assert [name for name in wanted if not torch.equal(found[name], wanted[name].float())] == []


@pytest.mark.parametrize(("family", "variant"), READABLE)
def test_a_file_that_diffusers_reads_becomes_a_folder(
    family: str, variant: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    base = tiny_pipeline(family, variant)
    model = trained(base)
    file = tmp_path / "model.safetensors"
    assert write_single_file(model, file, torch.float32, {}).holds
    result = imported(file, base, tmp_path / "folder")
    assert_denoiser(tmp_path / "folder", dict(model.denoiser.state_dict()))
    assert result.unused == ()
    assert set(result.num_tensors) | set(result.from_base) >= {model.family.denoiser_part, "vae", "text_encoder"}
    # A clean pipeline loads it all, and what is not from the file is the base's.
    pipeline = model.family.load_pipeline(tmp_path / "folder", torch.float32)
    other = model.family.load_pipeline(base, torch.float32)
    for part in ("vae", "text_encoder"):
        wanted = getattr(other, part).state_dict()
        found = getattr(pipeline, part).state_dict()
        assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


@pytest.mark.parametrize("family", ["flux", "mochi", "hunyuan_video", "ltx_video"])
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_a_denoiser_alone(family: str, prefix: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    base = tiny_pipeline(family)
    state = denoiser_file(base, tmp_path / "model.safetensors", prefix)
    result = imported(tmp_path / "model.safetensors", base, tmp_path / "folder")
    assert_denoiser(tmp_path / "folder", state)
    assert result.num_tensors == {"transformer": len(state)}
    assert "vae" in result.from_base


def with_file(tmp_path: Path, base: Path, change: Callable[[dict[str, Tensor]], Any]) -> Path:
    """A file of a tiny SDXL with something changed."""
    model, path = trained(base), tmp_path / "model.safetensors"
    write_single_file(model, path, torch.float32, {})
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    return path


UNET = "model.diffusion_model.input_blocks.0.0.weight"


def half(tensors: dict[str, Tensor]) -> None:
    tensors.update({name: tensor.half() for name, tensor in tensors.items()})


def test_dtypes_stay_and_what_is_not_known_is_named(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    base = tiny_pipeline("sdxl")

    def change(tensors: dict[str, Tensor]) -> None:
        half(tensors)
        tensors["cond_stage_model.transformer.text_model.embeddings.position_ids"] = torch.arange(77)

    file = with_file(tmp_path, base, change)
    result = imported(file, base, tmp_path / "folder")
    assert result.dtypes == ("F16",)
    assert len(result.unused) == 1
    stored = load_file(tmp_path / "folder" / "unet" / "diffusion_pytorch_model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    assert torch.equal(stored["conv_in.weight"], load_file(file)[UNET])
    said = str(result)
    assert "From the file, in F16: unet (" in said
    assert "In the file and not read (1): cond_stage_model" in said


def test_parts_that_the_file_lacks_are_the_bases(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    base = tiny_pipeline("sdxl")

    def change(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("first_stage_model.")]:
            del tensors[name]

    result = imported(with_file(tmp_path, base, change), base, tmp_path / "folder")
    assert result.from_base == ("vae",)
    for name, tensor in load_file(base / "vae" / "diffusion_pytorch_model.safetensors").items():
        assert torch.equal(tensor, load_file(tmp_path / "folder" / "vae" / "diffusion_pytorch_model.safetensors")[name])


FORMER = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}


def test_a_base_with_the_first_names_of_autoencoders(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """diffusers renames them when it loads such files."""
    base = tmp_path / "base"
    shutil.copytree(tiny_pipeline("sd1"), base)
    file = with_file(tmp_path, base, lambda _: None)
    path = base / "vae" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(path)
    for new, old in FORMER.items():
        for name in [name for name in tensors if f".attentions.0.{new}." in name]:
            tensors[name.replace(f".{new}.", f".{old}.")] = tensors.pop(name)
    save_file(tensors, path, {"format": "pt"})
    assert "decoder.mid_block.attentions.0.query.weight" in tensors
    result = imported(file, base, tmp_path / "folder")
    assert result.num_tensors["vae"] == len(tensors)
    wanted = open_family(base).load_vae(tiny_pipeline("sd1"), torch.float32).state_dict()
    found = open_family(base).load_vae(tmp_path / "folder", torch.float32).state_dict()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_only_files_of_the_model_are_copied(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_pipeline("sdxl"), base)
    variant = base / "unet" / "diffusion_pytorch_model.fp16.safetensors"
    shutil.copy(base / "unet" / "diffusion_pytorch_model.safetensors", variant)
    (base / "unet" / "diffusion_pytorch_model.bin").write_bytes(b"pickled")
    (base / "sd_xl_base.ckpt").write_bytes(b"pickled")
    (base / "onnx").mkdir()
    (base / "onnx" / "model.json").write_text("{}")
    imported(with_file(tmp_path, base, lambda _: None), base, tmp_path / "folder")
    files = {path.relative_to(tmp_path / "folder") for path in (tmp_path / "folder").rglob("*") if path.is_file()}
    original = tiny_pipeline("sdxl")
    assert files == {path.relative_to(original) for path in original.rglob("*") if path.is_file()}


def test_a_text_encoder_that_is_not_read_may_be_quantised(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    base, file = tiny_pipeline("sd3"), tmp_path / "model.safetensors"
    denoiser_file(base, file, "model.diffusion_model.")
    t5 = {"text_encoders.t5xxl.weight": torch.ones(2).to(torch.float8_e4m3fn)}
    save_file({**load_file(file), **t5, "spiece_model": torch.ones(2, dtype=torch.uint8)}, file)
    result = imported(file, base, tmp_path / "folder")
    assert result.dtypes == ("F32",)
    assert result.unused == ("spiece_model", "text_encoders.t5xxl.weight")


def test_a_file_of_the_first_programs_for_stable_diffusion(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """Whose text encoder has no inner model in its names."""
    base = tiny_pipeline("sd1")

    def change(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if ".text_model." in name]:
            tensors[name.replace(".text_model.", ".")] = tensors.pop(name)

    assert "text_encoder" in imported(with_file(tmp_path, base, change), base, tmp_path / "folder").num_tensors


def test_a_distilled_base_has_less_than_the_file(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    file = tmp_path / "model.safetensors"
    denoiser_file(tiny_pipeline("flux", "dev"), file)
    with pytest.raises(Refused, match=r"has 4 tensors that the base does not have: guidance_in"):
        imported(file, tiny_pipeline("flux", "schnell"), tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("prediction", "marks", "is_same"),
    [
        ("epsilon", ["v_pred"], False),
        ("v_prediction", ["v_pred"], True),
        ("v_prediction", ["v_pred", "ztsnr"], False),
        ("v_prediction", ["ztsnr"], False),
    ],
)
def test_a_file_that_says_how_it_was_trained(
    prediction: str, marks: list[str], is_same: bool, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_pipeline("sdxl"), base)
    path = base / "scheduler" / "scheduler_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "prediction_type": prediction}))
    file = with_file(tmp_path, base, lambda tensors: tensors.update({mark: torch.zeros(0) for mark in marks}))
    if is_same:
        imported(file, base, tmp_path / "folder")
        return
    with pytest.raises(Refused, match=r"is marked as a model that .*which its base does not"):
        imported(file, base, tmp_path / "folder")


def test_a_damaged_base_is_named(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_pipeline("sdxl"), base)
    file = with_file(tmp_path, base, lambda _: None)
    damaged = base / "vae" / "diffusion_pytorch_model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:200])
    with pytest.raises(UserError, match=rf"^{damaged} is damaged"):
        imported(file, base, tmp_path / "folder")


def test_a_base_whose_files_count_positions(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """As the first releases of Stable Diffusion store them."""
    base = tmp_path / "base"
    shutil.copytree(tiny_pipeline("sd1"), base)
    path = base / "text_encoder" / "model.safetensors"
    save_file({**load_file(path), "text_model.embeddings.position_ids": torch.arange(77)[None]}, path, {"format": "pt"})
    file = with_file(tmp_path, base, lambda _: None)
    result = imported(file, base, tmp_path / "folder")
    assert "text_encoder" in result.num_tensors
    open_family(base).load_pipeline(tmp_path / "folder", torch.float32)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors.pop(UNET), r"holds no sdxl model like the base|has no tensor .*input_blocks\.0\.0"),
        (lambda tensors: tensors.pop("first_stage_model.decoder.conv_out.bias"), r"no tensor first_stage_model\.dec"),
        (
            lambda tensors: tensors.update({UNET: tensors[UNET][:, :1].clone()}),
            r"shape .* in the file; conv_in\.weight",
        ),
        (lambda tensors: tensors.update({UNET: tensors[UNET][1:].clone()}), r"rows in the file; the base model has"),
        (
            lambda tensors: tensors.update({UNET: tensors[UNET].to(torch.float8_e4m3fn)}),
            r"0\.0\.weight of .* is in F8_E4M3",
        ),
        (lambda tensors: tensors.update({UNET: torch.tensor(1.0)}), r"has 0 rows in the file"),
        (
            lambda tensors: [
                tensors.update({name.replace("0.transformer.", "0.model."): tensors.pop(name)})
                for name in list(tensors)
                if name.startswith("conditioner.embedders.0.")
            ],
            r"holds a text_encoder in a layout that cannot be read: conditioner",
        ),
        (
            lambda tensors: tensors.clear() or tensors.update({"lora.up": torch.ones(1)}),
            r"named like lora\.up\. Choose",
        ),
    ],
)
def test_another_model_is_refused(
    change: Callable[[dict[str, Tensor]], Any], named: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    base = tiny_pipeline("sdxl")
    file = with_file(tmp_path, base, change)
    with pytest.raises(Refused, match=named):
        imported(file, base, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [file]


def test_files_that_are_no_checkpoints(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    base = tiny_pipeline("sdxl")
    pickled = tmp_path / "model.ckpt"
    pickled.write_bytes(b"\x80\x04.")
    with pytest.raises(Refused, match=r"Pickled checkpoints can run code"):
        imported(pickled, base, tmp_path / "folder")
    damaged = tmp_path / "model.safetensors"
    damaged.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{not a header}")
    with pytest.raises(UserError, match="is damaged, or not a safetensors file"):
        imported(damaged, base, tmp_path / "folder")
    with pytest.raises(UserError, match="does not exist"):
        ft.import_checkpoint(tmp_path / "absent.safetensors", str(base))
    assert sorted(tmp_path.iterdir()) == [pickled, damaged]


def test_a_family_of_unknown_layout(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(1)}, file)
    with pytest.raises(Refused, match=r"layout of ddpm models is not known"):
        imported(file, tiny_pipeline("ddpm"), tmp_path / "folder")


def test_a_folder_with_files_is_left_alone(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    base = tiny_pipeline("sdxl")
    file = with_file(tmp_path, base, lambda _: None)
    with pytest.raises(UserError, match="is not an empty folder"):
        ft.import_checkpoint(file, str(base), tmp_path)
