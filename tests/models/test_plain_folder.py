"""Model folders whose configurations name code are refused; ordinary ones are not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.core.errors import Refused, UserError
from foretune.models.adapter_settings import read_config
from foretune.models.plain_folder import require_plain_pipeline
from foretune.models.tensor_files import open_tensors, read_tensors

_INDEX = {
    "_class_name": "FluxPipeline",
    "vae": ["diffusers", "AutoencoderKL"],
    "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
    "image_encoder": [None, None],
    "force_zeros_for_empty_prompt": True,
}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def write(index: dict[str, Any] | None = None, **config: Any) -> Path:
        (tmp_path / "vae").mkdir(exist_ok=True)
        (tmp_path / "model_index.json").write_text(json.dumps({**_INDEX, **(index or {})}))
        (tmp_path / "vae" / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write


def test_an_ordinary_folder_passes(folder: Callable[..., Path]) -> None:
    require_plain_pipeline(
        folder(_name_or_path="a/b", _attn_implementation="sdpa", auto_map=None, trust_remote_code=False)
    )


@pytest.mark.parametrize(
    "index",
    [
        {"vae": ["evil_module", "Evil"]},
        {"vae": ["diffusers.evil", "Evil"]},
        {"../vae": ["diffusers", "AutoencoderKL"]},
        {"_class_name": ["evil_module", "Evil"]},
        {"custom_pipelines": {"a": "b"}},
    ],
)
def test_code_in_the_index_is_refused(folder: Callable[..., Path], index: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=r"model_index\.json"):
        require_plain_pipeline(folder(index))


@pytest.mark.parametrize(
    "config",
    [
        {"auto_map": {"AutoModel": "a.B"}},
        {"inner": [{"auto_map": "a.B"}]},
        {"trust_remote_code": True},
        {"_attn_implementation": "someone/kernel"},
        {"use_kernels": True},
        {"_target_": "os.system"},
        {"transformers_weights": "../a.safetensors"},
        {"transformers_weights": "a.bin"},
    ],
)
def test_code_in_a_configuration_is_refused(folder: Callable[..., Path], config: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=r"vae/config\.json"):
        require_plain_pipeline(folder(**config))


@pytest.mark.parametrize("target", ["../a.safetensors", "/a.safetensors", "a.bin"])
def test_weights_elsewhere_are_refused(folder: Callable[..., Path], target: str) -> None:
    path = folder()
    (path / "vae" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": target}}))
    with pytest.raises(Refused, match=r"\.index\.json"):
        require_plain_pipeline(path)


@pytest.mark.parametrize("key", ["megatron_config", "auto_mapping", "corda_config", "loftq_config"])
def test_an_adapter_that_names_code_is_refused(tmp_path: Path, key: str) -> None:
    settings = {"peft_type": "LORA", "r": 2, "target_modules": ["a"]}
    assert read_config(settings, tmp_path).peft_type == "LORA"
    with pytest.raises(Refused, match=key):
        read_config({**settings, key: {"a": "b"}}, tmp_path)
    with pytest.raises(UserError, match="peft does not know"):
        read_config({"peft_type": "EVIL"}, tmp_path)


def test_a_damaged_file_of_tensors_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes((2).to_bytes(8, "little") + b"[]")
    with pytest.raises(UserError, match=r"a\.safetensors is damaged"), open_tensors(tmp_path / "a.safetensors"):
        pass
    with pytest.raises(UserError, match=r"a\.safetensors is damaged"):
        read_tensors(tmp_path / "a.safetensors")
