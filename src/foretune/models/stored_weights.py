"""The weights of a part on disk, read one tensor at a time.

Files are memory-mapped: a tensor that was read is pages of its file, which the system can drop and read again, until it
is moved or put into another dtype.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from foretune.choices.model import read_json
from foretune.models.tensor_files import get_tensor, opened_tensors

_FILE = "diffusion_pytorch_model.safetensors"
_INDEX = f"{_FILE}.index.json"


class StoredWeights(Mapping[str, Tensor]):
    """The tensors of one part by name."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        """`files` has the file of each tensor."""
        self._files = files
        self._open: dict[Path, Any] = {}

    @classmethod
    def of(cls, part: Path) -> Self | None:
        """Opens the files that diffusers would load from a part's folder; None if they have other names."""
        if (part / _INDEX).is_file():
            weight_map: Mapping[str, str] = read_json(part / _INDEX)["weight_map"]
            return cls({name: part / file for name, file in weight_map.items()})
        path = part / _FILE
        if not path.is_file():
            return None
        return cls(dict.fromkeys(opened_tensors(path).keys(), path))

    def fit(self, model: nn.Module) -> bool:
        """Whether the files have the model's tensors under its names, and no others.

        Checkpoints from earlier versions of diffusers do not: it renames their tensors.
        """
        shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        return shapes.keys() == self._files.keys() and all(
            self._opened(name).get_slice(name).get_shape() == shape for name, shape in shapes.items()
        )

    def __getitem__(self, name: str) -> Tensor:
        return get_tensor(self._opened(name), self._files[name], name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def put(self, module: nn.Module, prefix: str, *, as_stored: bool = False) -> None:
        """Reads the tensors of a module, without those of its children, in the dtypes that it has.

        `as_stored` leaves them in the dtypes of the files: they stay pages of the files.
        """
        for name, weight in module._parameters.items():
            if weight is not None:
                read = self._in(f"{prefix}{name}", None if as_stored else weight.dtype)
                module._parameters[name] = nn.Parameter(read, requires_grad=weight.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                module._buffers[name] = self._in(f"{prefix}{name}", None if as_stored else buffer.dtype)

    def _in(self, name: str, dtype: torch.dtype | None) -> Tensor:
        tensor = self[name]
        return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor

    def _opened(self, name: str) -> Any:
        path = self._files[name]
        if path not in self._open:
            self._open[path] = opened_tensors(path)
        return self._open[path]
