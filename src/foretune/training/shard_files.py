"""Whole tensors of a sharded checkpoint, put together one at a time.

Processes write their shards in the safetensors layout of torch.distributed.checkpoint. Torch's own reader puts all
tensors together at once; a reader of whole models on the host needs one after the other.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

SHARDING_INFO, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
"""How torch.distributed.checkpoint marks shards in the header of a safetensors file."""


@dataclass(frozen=True)
class _Part:
    """A shard in a file."""

    file: Any
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class WholeTensors(Mapping[str, Tensor]):
    """Tensors of one component by name; each is read when it is asked for."""

    def __init__(self, component: str, parts: Mapping[str, list[_Part]]) -> None:
        self._component, self._parts = component, parts

    def __getitem__(self, name: str) -> Tensor:
        parts, key = self._parts[name], f"{self._component}/{name}"
        if len(parts) == 1:
            tensor: Tensor = parts[0].file.get_tensor(key)
            return tensor
        whole = torch.empty(_shape_of(parts), dtype=parts[0].file.get_tensor(key).dtype)
        for part in parts:
            place = tuple(slice(start, start + length) for start, length in zip(part.offset, part.shape, strict=True))
            whole[place] = part.file.get_tensor(key)
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def whole_tensors(paths: Iterable[Path]) -> dict[str, WholeTensors]:
    """Returns the tensors of each component that these files hold. Raises ValueError if a shard is missing."""
    parts: dict[str, dict[str, list[_Part]]] = {}
    for path in paths:
        file: Any = safe_open(path, framework="pt")
        offsets = json.loads((file.metadata() or {}).get(SHARDING_INFO, "{}"))
        for key in file.keys():  # noqa: SIM118 - not a mapping
            shape = tuple(file.get_slice(key).get_shape())
            offset = tuple(offsets[key][OFFSETS]) if key in offsets else (0,) * len(shape)
            component, _, name = key.partition("/")
            parts.setdefault(component, {}).setdefault(name, []).append(_Part(file, offset, shape))
    for component, found in parts.items():
        for name, shards in found.items():
            if sum(math.prod(shard.shape) for shard in shards) != math.prod(_shape_of(shards)):
                raise ValueError(f"the shards of {component}/{name} are not the whole tensor")
    return {component: WholeTensors(component, found) for component, found in parts.items()}


def _shape_of(parts: Iterable[_Part]) -> tuple[int, ...]:
    ends = [[start + length for start, length in zip(one.offset, one.shape, strict=True)] for one in parts]
    return tuple(max(sides) for sides in zip(*ends, strict=True))
