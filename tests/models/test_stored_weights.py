"""Weights are read one module at a time, and are what diffusers would have loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from foretune.core.errors import UserError
from foretune.models.family import part_folder
from foretune.models.locating import open_family

TinyPipeline = Callable[..., Path]


def everything(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("name", ["ddpm", "sdxl", "sd3", "flux", "wan", "pixart", "qwen_image", "z_image"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_what_diffusers_loads(name: str, dtype: torch.dtype, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(name)
    family = open_family(folder)
    loader: Any = family.denoiser_class()
    part = part_folder(folder, family.denoiser_part)
    theirs = loader.from_pretrained(str(part), dtype=dtype, use_safetensors=True)
    ours: Any = family.load_denoiser(folder, dtype)
    wanted, found = everything(theirs), everything(ours)
    assert wanted.keys() == found.keys()
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key], tensor), key
        assert found[key].requires_grad == tensor.requires_grad, key
    assert ours.config == theirs.config
    assert not any(module.training for module in ours.modules())


def test_one_module_after_the_other_is_read(tiny_pipeline: TinyPipeline) -> None:
    """While a module is finished, those that follow have no weights yet: the host holds one module, not the model."""
    folder = tiny_pipeline("flux")
    family = open_family(folder)
    seen: list[str] = []

    def finish(denoiser: nn.Module, name: str) -> None:
        module = denoiser.get_submodule(name)
        assert not any(tensor.is_meta for tensor in module.parameters(recurse=False))
        seen.append(name)
        later = [m for other, m in denoiser.named_modules() if other not in seen]
        assert all(tensor.is_meta for m in later for tensor in m.parameters(recurse=False))

    denoiser = family.load_denoiser(folder, torch.float32, finish)
    assert seen == [name for name, _ in denoiser.named_modules()]


def rewritten(folder: Path, part: str, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    path = folder / part / "diffusion_pytorch_model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def test_tensors_with_names_of_earlier_versions_are_left_to_diffusers(
    tiny_pipeline: TinyPipeline, copied: Callable[[Path], Path]
) -> None:
    """The oldest UNets have `query` where diffusers has `to_q` today."""
    folder = copied(tiny_pipeline("ddpm"))
    family = open_family(folder)
    wanted = family.load_denoiser(folder, torch.float32).state_dict()
    earlier = {"to_q.": "query.", "to_k.": "key.", "to_v.": "value.", "to_out.0.": "proj_attn."}

    def rename(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        renamed = {}
        for name, tensor in tensors.items():
            for new, old in earlier.items():
                name = name.replace(new, old)  # noqa: PLW2901 - one name after the other
            renamed[name] = tensor
        assert renamed.keys() != tensors.keys()
        return renamed

    rewritten(folder, "unet", rename)
    seen: list[str] = []
    found = family.load_denoiser(folder, torch.float32, lambda _, name: seen.append(name))
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in found.state_dict().items())
    assert len(seen) == len(list(found.modules()))


def test_a_damaged_file_is_named(tiny_pipeline: TinyPipeline, copied: Callable[[Path], Path]) -> None:
    folder = copied(tiny_pipeline("flux"))
    path = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"diffusion_pytorch_model\.safetensors is damaged"):
        open_family(folder).load_denoiser(folder, torch.float32)


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[Path], Path]:
    """Copies a model folder, so that its files can be changed."""
    import shutil

    def copy(folder: Path) -> Path:
        shutil.copytree(folder, tmp_path / "copied")
        return tmp_path / "copied"

    return copy
