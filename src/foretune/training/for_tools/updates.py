"""What an adapter does to one layer, by the names that other programs give its matrices.

The rules are those of ComfyUI (`comfy/weight_adapter` at acbf08c), which kohya's trainers and LyCORIS share:

- LoRA adds `up @ down * alpha / rank`
- LoHa adds `(w1_a @ w1_b) * (w2_a @ w2_b) * alpha / rank`
- LoKr adds `kron(w1, w2_a @ w2_b) * alpha / rank`, and `kron(w1, w2)` without a factor if `w2` is whole
- DoRA multiplies each row of the sum by `dora_scale / norm of the row before`. peft divides by the norm of the row
  after; the export converts one to the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from foretune.models.adapters import ADAPTER_NAME

DOWN, UP = "lora_down.weight", "lora_up.weight"
# The matrices whose columns are ranks, with the ones whose rows are.
_LEFT_RIGHT = {UP: DOWN, "hada_w1_a": "hada_w1_b", "hada_w2_a": "hada_w2_b"}
# The program adds it to the norm.
_EPS = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Update:
    """An adapter's change of one layer."""

    matrices: Mapping[str, Tensor]
    """By their names in files."""
    alpha: float | None
    """None if the rule has no factor."""
    row_scale: Tensor | None = None
    """DoRA: one number for each output row, in fp32, because a file may hold other numbers in fewer bits."""

    def tensors(self) -> dict[str, Tensor]:
        """Returns what a file holds for this layer."""
        found = dict(self.matrices)
        if self.alpha is not None:
            found["alpha"] = torch.tensor(self.alpha, dtype=torch.float32)
        if self.row_scale is not None:
            found["dora_scale"] = self.row_scale
        return found


def layers_with_adapter(denoiser: nn.Module) -> dict[str, Any]:
    """Returns peft's layers by the names of those that they adapt."""
    return {name: module for name, module in denoiser.named_modules() if isinstance(module, BaseTunerLayer)}


@torch.no_grad()
def update_of(layer: Any) -> Update:
    """Returns the change that peft's layer makes to its base."""
    scale = float(layer.scaling[ADAPTER_NAME])
    if hasattr(layer, "lora_A"):
        down, up = layer.lora_A[ADAPTER_NAME].weight, layer.lora_B[ADAPTER_NAME].weight
        update = Update({DOWN: down, UP: up}, scale * down.shape[0])
        if ADAPTER_NAME not in layer.lora_magnitude_vector:
            return update
        magnitude = layer.lora_magnitude_vector[ADAPTER_NAME].weight.float().flatten()
        before = layer.get_base_layer().weight.float()
        after = before + change(update.tensors(), before)
        return replace(update, row_scale=_per_row(magnitude * (_norms(before) + _EPS) / _norms(after), before))
    if hasattr(layer, "hada_w1_a"):
        names = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
        matrices = {name: getattr(layer, name)[ADAPTER_NAME] for name in names}
        return Update(matrices, scale * matrices["hada_w1_b"].shape[0])
    small = layer.lokr_w1[ADAPTER_NAME]
    if ADAPTER_NAME in layer.lokr_w2:
        return Update({"lokr_w1": small * scale, "lokr_w2": layer.lokr_w2[ADAPTER_NAME]}, None)
    pair = {name: getattr(layer, name)[ADAPTER_NAME] for name in ("lokr_w2_a", "lokr_w2_b")}
    return Update({"lokr_w1": small, **pair}, scale * pair["lokr_w2_b"].shape[0])


@torch.no_grad()
def stack(updates: Sequence[Update | None], bases: Sequence[Tensor]) -> Update:
    """Returns one update for layers whose outputs another program has in one; None is a layer without an adapter.

    Ranks are concatenated: each layer keeps its own, and the blocks between them are zero.
    """
    given = [update for update in updates if update is not None]
    first = given[0]
    matrices: dict[str, Tensor] = {}
    for left, right in _LEFT_RIGHT.items():
        if left in first.matrices:
            columns = [
                first.matrices[left].new_zeros(base.shape[0], 0) if update is None else update.matrices[left]
                for update, base in zip(updates, bases, strict=True)
            ]
            matrices[left] = _block_diagonal(columns)
            matrices[right] = torch.cat([update.matrices[right] for update in given])
    assert matrices, "stacked LoKr is refused before"
    assert first.alpha is not None
    rank = _rank(first.matrices)
    total = sum(_rank(update.matrices) for update in given)
    scales = None
    if first.row_scale is not None:
        scales = torch.cat(
            [
                _per_row(_norms(base.float()) + _EPS, base) if update is None else _scale_of(update)
                for update, base in zip(updates, bases, strict=True)
            ]
        )
    return Update(matrices, first.alpha / rank * total, scales)


def swap_halves(update: Update) -> Update:
    """Returns the update of a layer whose two halves of output rows are in the other order."""
    rows = {name: swap(tensor) if name in _LEFT_RIGHT else tensor for name, tensor in update.matrices.items()}
    assert not any(name.startswith("lokr") for name in rows), "their rows cannot be swapped"
    return replace(update, matrices=rows, row_scale=None if update.row_scale is None else swap(update.row_scale))


def swap(tensor: Tensor) -> Tensor:
    """Returns the second half of the rows, then the first."""
    first, second = tensor.chunk(2)
    return torch.cat([second, first])


def change(tensors: Mapping[str, Tensor], base: Tensor) -> Tensor:
    """Returns what the matrices of a file add to a weight, in fp32."""
    values = {name: tensor.float() for name, tensor in tensors.items()}
    rank: int | None
    if UP in values:
        product, rank = values[UP].flatten(1) @ values[DOWN].flatten(1), values[DOWN].shape[0]
    elif "hada_w1_a" in values:
        one = values["hada_w1_a"] @ values["hada_w1_b"]
        product, rank = one * (values["hada_w2_a"] @ values["hada_w2_b"]), values["hada_w1_b"].shape[0]
    else:
        large, rank = values.get("lokr_w2"), None
        if large is None:
            large, rank = values["lokr_w2_a"] @ values["lokr_w2_b"], values["lokr_w2_b"].shape[0]
        small = values["lokr_w1"]
        product = torch.kron(small.reshape(*small.shape, *[1] * (large.dim() - 2)), large)
    factor = values["alpha"].item() / rank if rank is not None else 1.0
    added: Tensor = product.reshape(base.shape) * factor
    return added


def changed(tensors: Mapping[str, Tensor], base: Tensor) -> Tensor:
    """Returns the weight that a program has after it loaded these tensors of a file, in fp32."""
    before = base.float()
    after = before + change(tensors, before)
    if "dora_scale" in tensors:
        after = after * tensors["dora_scale"].float() / _per_row(_norms(before) + _EPS, base)
    return after


def _rank(matrices: Mapping[str, Tensor]) -> int:
    return next(int(matrices[right].shape[0]) for left, right in _LEFT_RIGHT.items() if left in matrices)


def _scale_of(update: Update) -> Tensor:
    assert update.row_scale is not None
    return update.row_scale


def _norms(weight: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(weight.flatten(1), dim=1)
    return norms


def _per_row(values: Tensor, weight: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (weight.dim() - 1))


def _block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    rows, columns = sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks)
    whole = blocks[0].new_zeros(rows, columns)
    row = column = 0
    for block in blocks:
        whole[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return whole
