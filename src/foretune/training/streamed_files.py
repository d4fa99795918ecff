"""Safetensors files written tensor by tensor: a model that is put together as it is written is never whole in memory.

The layout is that of the library: a header with the place of each tensor, then the tensors, the widest dtypes first, so
that each is aligned.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import safe_open
from torch import Tensor

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT_BYTES = 8
_NAME = "diffusion_pytorch_model"
_MOST_SHARD = "10GB"
"""As diffusers splits models."""

Read = Callable[[str], Tensor]
"""Returns the tensor of a name, on the CPU."""


def write_tensors(path: Path, forms: Mapping[str, Tensor], read: Read, metadata: Mapping[str, str]) -> None:
    """Writes tensors of these shapes and dtypes to one file, each when it is its turn."""
    names = sorted(forms, key=lambda name: (-forms[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name in names:
        form = forms[name]
        end = offset + form.numel() * form.element_size()
        header[name] = {"dtype": _DTYPES[form.dtype], "shape": list(form.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            tensor, form = read(name), forms[name]
            assert (tensor.dtype, tensor.shape) == (form.dtype, form.shape), f"{name} is not as announced"
            file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def write_model(directory: Path, forms: Mapping[str, Tensor], read: Read) -> None:
    """Writes a model's tensors under the names that diffusers loads: one file, or shards with their index."""
    split = split_state_dict_into_shards_factory(
        dict(forms),
        get_storage_size=lambda form: form.numel() * form.element_size(),
        filename_pattern=_NAME + "{suffix}.safetensors",
        max_shard_size=_MOST_SHARD,
    )
    directory.mkdir(parents=True, exist_ok=True)
    for file, names in split.filename_to_tensors.items():
        write_tensors(directory / file, {name: forms[name] for name in names}, read, {"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (directory / f"{_NAME}.safetensors.index.json").write_text(text, encoding="utf-8")


def num_equal(paths: list[Path], names: Mapping[str, Tensor], read: Read) -> int:
    """Counts the tensors that files hold bit for bit; two of them are in memory at a time."""
    equal = 0
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                equal += name in names and same_bits(file.get_tensor(name), read(name))
    return equal


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors on the CPU have the same dtype, shape and bits."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
