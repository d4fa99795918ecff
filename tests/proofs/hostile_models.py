"""Model folders that somebody else made, with code in every place that a library is known to take it from.

Each is a function that changes a copy of a small model. The folder also holds `evil_module.py`, which leaves a canary
when it is imported, and the folder is the current one, as of a user who has gone there.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.choices.model import shipped_folder
from tests.proofs import hostile_contents, hostile_pickles

CANARY = "canary"
Make = Callable[[Path], object]
_CODE = "import pathlib\npathlib.Path(__file__).with_name('canary-imported').touch()\nclass Evil:\n    @classmethod\n    def from_pretrained(cls, *a, **k):\n        return cls()\n"  # noqa: E501


@dataclass(frozen=True)
class HostileModel:
    """A folder, and what must become of it."""

    make: Make
    refused_with: str | None = None
    """What the message names; None where the model is loaded and the code beside it is left alone."""


ALL: dict[str, HostileModel] = {}


def write_model(folder: Path, name: str | None) -> None:
    """Writes the small model, and with a name what makes it hostile."""
    shutil.copytree(shipped_folder("foretune-shapes"), folder)
    if name is not None:
        for place in (folder, *(path for path in folder.iterdir() if path.is_dir())):
            (place / "evil_module.py").write_text(_CODE)
        ALL[name].make(folder)


def _case(name: str, make: Make, refused_with: str | None) -> None:
    ALL[name] = HostileModel(make, refused_with)


def _change(path: Path, **keys: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **keys}))


def _setting(file: str, **keys: Any) -> Make:
    return lambda folder: _change(folder / file, **keys)


# ---- the index of the pipeline

for _name, _parts, _words in (
    ("pipeline class of a module", {"_class_name": ["evil_module", "Evil"]}, "model_index.json"),
    ("pipeline class of a repository", {"_class_name": "someone/evil"}, "model_index.json"),
    ("pipeline class that is a list of one", {"_class_name": ["FluxPipeline"]}, "model_index.json"),
    ("pipeline class outside of diffusers", {"_class_name": "os.system"}, "model_index.json"),
    ("custom pipelines", {"custom_pipelines": {"x": {"impl": "evil_module.py"}}}, "model_index.json"),
    ("custom pipeline", {"custom_pipeline": "evil_module"}, "model_index.json"),
    ("target in the index", {"_target_": "os.system", "_args_": ["touch canary-target"]}, "model_index.json"),
    ("trust flag in the index", {"trust_remote_code": True}, "model_index.json"),
    ("tokenizer of a module in the folder", {"tokenizer": ["evil_module", "Evil"]}, "model_index.json"),
    ("scheduler of a module in the folder", {"scheduler": ["evil_module", "Evil"]}, "model_index.json"),
    ("part of a module of Python", {"feature_extractor": ["antigravity", "Evil"]}, "model_index.json"),
    ("part of the operating system", {"vae": ["os", "system"]}, "model_index.json"),
    ("part of a module by a dotted name", {"vae": ["scheduler.evil_module", "Evil"]}, "model_index.json"),
    ("part that nobody knows", {"evil_module": ["evil_module", "Evil"]}, "model_index.json"),
    ("part outside of the folder", {"../outside": ["diffusers", "AutoencoderKL"]}, "model_index.json"),
    ("part with an absolute path", {"/etc": ["diffusers", "AutoencoderKL"]}, "model_index.json"),
    ("index that is a list", None, "model_index.json"),
):  # fmt: skip
    _case(
        _name,
        (lambda folder: (folder / "model_index.json").write_text("[]"))
        if _parts is None
        else _setting("model_index.json", **_parts),
        _words,
    )

# ---- configurations of parts

_AUTO_MAP = {
    "AutoModel": "evil_module.Evil",
    "AutoConfig": "evil_module.Evil",
    "AutoTokenizer": ["evil_module.Evil", None],
}
for _part in ("text_encoder", "text_encoder_2", "vae", "transformer"):
    _case(f"auto map in {_part}", _setting(f"{_part}/config.json", auto_map=_AUTO_MAP), f"{_part}/config.json")
for _name, _file, _keys in (
    ("auto map in a tokenizer", "tokenizer/tokenizer_config.json", {"auto_map": _AUTO_MAP}),
    ("auto map of a repository", "tokenizer_2/tokenizer_config.json", {"auto_map": {"AutoTokenizer": "a/b--c.Evil"}}),
    ("auto map in a scheduler", "scheduler/scheduler_config.json", {"auto_map": _AUTO_MAP}),
    ("auto map deep in a configuration", "text_encoder/config.json", {"text_config": {"x": [{"auto_map": _AUTO_MAP}]}}),
    ("trust flag in a configuration", "text_encoder/config.json", {"trust_remote_code": True}),
    ("trust flag in a tokenizer", "tokenizer/tokenizer_config.json", {"trust_remote_code": "yes"}),
    ("kernel of a repository as attention", "text_encoder/config.json", {"_attn_implementation": "evil/flash-attn"}),
    ("kernel with a function as attention", "text_encoder_2/config.json", {"attn_implementation": "evil/attn:run"}),
    ("kernel of a repository inside", "transformer/config.json", {"_attn_implementation_internal": "evil/k@main"}),
    ("kernel switched on", "text_encoder/config.json", {"use_kernels": True}),
    ("kernel configuration", "text_encoder/config.json", {"kernel_config": {"RMSNorm": "evil/kernels:RMSNorm"}}),
    ("target in a configuration", "transformer/config.json", {"_target_": "subprocess.call"}),
    ("custom generation", "text_encoder_2/generation_config.json", {"custom_generate": "evil_module"}),
    ("adapter of another folder", "text_encoder/adapter_config.json", {"base_model_name_or_path": "/etc"}),
):  # fmt: skip
    _case(_name, _setting(_file, **_keys), _file)

# ---- weights

_WEIGHTS = {
    "transformer": "transformer/diffusion_pytorch_model.safetensors",
    "vae": "vae/diffusion_pytorch_model.safetensors",
    "text_encoder": "text_encoder/model.safetensors",
}
_PICKLED = {
    "diffusion_pytorch_model.safetensors": ("diffusion_pytorch_model.bin", "model.ckpt"),
    "model.safetensors": ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"),
}


def _pickled(weights: str, name: str, *, keeps: bool) -> Make:
    def make(folder: Path) -> None:
        path = folder / weights
        path.with_name(name).write_bytes(hostile_pickles.CONTAINERS["torch_checkpoint"](folder / f"{CANARY}-{name}"))
        if not keeps:
            path.unlink()

    return make


for _part, _file in _WEIGHTS.items():
    for _other in _PICKLED[Path(_file).name]:
        _case(f"{_other} in place of {_part}", _pickled(_file, _other, keeps=False), _part)
        _case(f"{_other} beside {_part}", _pickled(_file, _other, keeps=True), None)


def _pickle_named_safetensors(folder: Path) -> None:
    path = folder / _WEIGHTS["transformer"]
    path.write_bytes(hostile_pickles.CONTAINERS["torch_checkpoint"](folder / f"{CANARY}-weights"))


_case("pickle with the name of safetensors", _pickle_named_safetensors, "diffusion_pytorch_model.safetensors")
for _name, _make in hostile_contents.SPECIAL.items():

    def _special(folder: Path, make: Make = _make) -> None:
        (folder / _WEIGHTS["text_encoder"]).unlink()
        make(folder / _WEIGHTS["text_encoder"])

    if _name != "folder":
        _case(f"weights are a {_name}", _special, "text_encoder")


def _index(weights: str, target: str) -> Make:
    def make(folder: Path) -> None:
        path = folder / weights
        path.with_name(f"{path.name}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"a": target}}))

    return make


for _target in ("../../outside.safetensors", "/etc/passwd", "pytorch_model.bin", "..\\outside.safetensors"):
    _case(f"index names {_target}", _index(_WEIGHTS["transformer"], _target), ".index.json")
_case("index without weights", _setting("text_encoder/model.safetensors.index.json", metadata={}), ".index.json")
_case(
    "other file in a configuration",
    _setting("text_encoder/config.json", transformers_weights="../x.bin"),
    "config.json",
)


# ---- files of other kinds


def _secret_as(file: str) -> Make:
    def make(folder: Path) -> None:
        secret = folder.parent / "secret"
        secret.write_text("canary of the folder outside")
        (folder / file).unlink(missing_ok=True)
        (folder / file).symlink_to(os.path.relpath(secret, (folder / file).parent))

    return make


for _file in (
    "model_index.json",
    "transformer/config.json",
    "text_encoder/config.json",
    "tokenizer/tokenizer_config.json",
):
    _case(f"{_file} is a link out", _secret_as(_file), _file)


def _nested(folder: Path) -> None:
    (folder / "vae" / "config.json").write_text('{"a":' * 100_000)


def _python_everywhere(folder: Path) -> None:
    for name in (
        "pipeline.py",
        "transformer/modeling.py",
        "tokenizer/tokenization.py",
        "__init__.py",
        "sitecustomize.py",
    ):
        (folder / name).write_text(_CODE)


_case("configuration nested without end", _nested, "vae/config.json")
_case("Python files that nothing names", _python_everywhere, None)
_case("address of the original", _setting("text_encoder/config.json", _name_or_path="https://192.0.2.1/model"), None)
_case("chat template with code", _setting("tokenizer/tokenizer_config.json", chat_template="{{ ''.__class__ }}"), None)
