"""Adapters as one file for ComfyUI or for kohya's trainers, read back and compared layer by layer."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoKrConfig
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from foretune.catalog.tool_names import (
    AdapterForm,
    OriginalLayout,
    OriginalPlace,
    adapter_form,
    adapter_metadata,
    original_layout,
    why_no_adapter,
)
from foretune.choices.method import LowRank
from foretune.core.errors import Refused
from foretune.models.adapters import ADAPTER_NAME
from foretune.step.methods.adapter import AppliedAdapter
from foretune.training.for_tools.updates import (
    Update,
    change,
    changed,
    layers_with_adapter,
    stack,
    swap,
    swap_halves,
    update_of,
)

_SPELLINGS = {"lora_down.weight": "lora_A.weight", "lora_up.weight": "lora_B.weight"}
"""Names with dots go with peft's names of the matrices, which diffusers reads, too."""


@dataclass(frozen=True)
class LayerProof:
    """What was found when the file was read back by the other program's rule."""

    num_layers: int
    """Layers that were trained."""
    num_equal: int
    """Layers to which the file gives the trained weights."""
    max_difference: float
    """Largest difference of a weight, relative to the largest change of its layer; for DoRA to its largest weight."""

    def __str__(self) -> str:
        return (
            f"{self.num_equal} of {self.num_layers} trained layers have the trained weights; "
            f"they differ by {self.max_difference:.1g} of the largest change at most"
        )

    @property
    def holds(self) -> bool:
        return self.num_equal == self.num_layers > 0


@dataclass(frozen=True)
class _Slot:
    """One layer of the other program, with the layers of diffusers that it holds."""

    key: str
    """Its name in the file."""
    layers: tuple[str, ...]
    is_swapped: bool
    """Whether the file has the rows in the other order."""
    scales_are_swapped: bool
    """Whether DoRA's row scales are: ComfyUI swaps the matrices of a layer with diffusers' name, but not these."""


def write_adapter_file(method: AppliedAdapter, file_format: str, path: Path, about: Mapping[str, str]) -> LayerProof:
    """Writes the adapter for another program, reads it back and compares.

    Raises:
        Refused: the program cannot load this adapter, or not all of it.
    """
    form = require_form(method, file_format)
    metadata = {**_metadata(method, form, file_format), **about}
    save_file(adapter_tensors(method, form), path, metadata={"format": "pt", **metadata})
    return prove_adapter_file(method, file_format, path)


def adapter_tensors(method: AppliedAdapter, form: AdapterForm) -> dict[str, Tensor]:
    """Returns the adapter's tensors by their names in the file."""
    layers, modules = layers_with_adapter(method.denoiser), dict(method.denoiser.named_modules())
    tensors: dict[str, Tensor] = {}
    for slot in _slots(method, form):
        for name, tensor in _merged_update(slot, layers, modules).tensors().items():
            spelled = _SPELLINGS.get(name, name) if form.keeps_dots else name
            tensors[f"{slot.key}.{spelled}"] = tensor.detach().cpu().contiguous().clone()
    return tensors


def require_form(method: AppliedAdapter, file_format: str) -> AdapterForm:
    """Returns the form of the file; raises if the program loads no such adapter."""
    family, kind = method.family.name, method.adapter.kind
    if (reason := why_no_adapter(family, kind, file_format)) is not None:
        raise Refused(
            f"There is no {file_format} export of this adapter ({kind} of {family}): {reason}. "
            "For diffusers: foretune export RUN. As part of the model: foretune export RUN --merge"
        )
    form = adapter_form(family, file_format)
    assert form is not None, "there is a reason if there is no form"
    return form


@torch.no_grad()
def prove_adapter_file(method: AppliedAdapter, file_format: str, path: Path) -> LayerProof:
    """Reads the file and compares the weights that the other program would have with those that peft merges."""
    form = require_form(method, file_format)
    groups = _by_layer(load_file(path))
    layers = layers_with_adapter(method.denoiser)
    modules = dict(method.denoiser.named_modules())
    differences: dict[str, float] = {}
    for slot in _slots(method, form):
        bases = [_base(modules[name]).float() for name in slot.layers]
        rows = [base.shape[0] for base in bases]
        tensors = groups.pop(slot.key, None)
        if tensors is not None:
            found = _read(tensors, slot, torch.cat(bases)).split(rows)
            for name, base, weight in zip(slot.layers, bases, found, strict=True):
                differences[name] = _difference(layers.get(name), base, weight, is_whole="dora_scale" in tensors)
    tolerance = 1e-5 if _dtype_of(path) == torch.float32 else torch.finfo(_dtype_of(path)).eps
    is_clean = not groups and all(value <= tolerance for name, value in differences.items() if name not in layers)
    return LayerProof(
        num_layers=len(layers),
        num_equal=sum(differences.get(name, torch.inf) <= tolerance for name in layers) if is_clean else 0,
        max_difference=max(differences.values(), default=torch.inf),
    )


def _slots(method: AppliedAdapter, form: AdapterForm) -> tuple[_Slot, ...]:
    """Returns the layers of the other program that the adapter changes; raises if it does not load one of them."""
    trained = layers_with_adapter(method.denoiser)
    config = method.family.architecture.denoiser
    layout = original_layout(method.family.name, config)
    places = {name: _place(name, form, layout) for name in trained}
    wrong = sorted(name for name, place in places.items() if place is None)
    if wrong:
        raise Refused(
            f"{form.program} gives no adapters to {len(wrong)} of the {len(trained)} trained layers, such as "
            f"{wrong[0]}. Train others (method.targets), or export for diffusers."
        )
    linear = {name: m for name, m in method.denoiser.named_modules() if name and _has_weight(m)}
    siblings: dict[str, dict[int, str]] = {}
    if form.is_original:
        assert layout is not None
        for name in linear:
            if (place := layout.place(name)) is not None:
                siblings.setdefault(place.name, {})[place.part] = name
    return tuple(dict.fromkeys(_slot(name, place, form, layout, siblings) for name, place in places.items() if place))


def _place(name: str, form: AdapterForm, layout: OriginalLayout | None) -> OriginalPlace | None:
    if not form.loads(name):
        return None
    if not form.is_original:
        return OriginalPlace(name)
    return None if layout is None else layout.place(name)


def _slot(
    name: str,
    place: OriginalPlace,
    form: AdapterForm,
    layout: OriginalLayout | None,
    siblings: Mapping[str, Mapping[int, str]],
) -> _Slot:
    if form.is_original:
        parts = siblings[place.name]
        layers = tuple(parts[part] for part in range(place.num_parts))
        return _Slot(form.name_of(place.name), layers, place.is_swapped, place.is_swapped)
    original = layout.place(name) if layout is not None else None
    return _Slot(
        form.name_of(name), (name,), is_swapped=False, scales_are_swapped=bool(original and original.is_swapped)
    )


def _merged_update(slot: _Slot, layers: Mapping[str, Any], modules: Mapping[str, nn.Module]) -> Update:
    updates = [update_of(layers[name]) if name in layers else None for name in slot.layers]
    (first, *others) = updates
    update = first if first is not None and not others else stack(updates, [_base(modules[n]) for n in slot.layers])
    if slot.is_swapped:
        return swap_halves(update)
    if slot.scales_are_swapped and update.row_scale is not None:
        return Update(update.matrices, update.alpha, swap(update.row_scale))
    return update


def _read(tensors: Mapping[str, Tensor], slot: _Slot, base: Tensor) -> Tensor:
    """Returns the change by these tensors, or with DoRA the whole weight, with rows as diffusers has them."""
    if "dora_scale" not in tensors:
        return swap(change(tensors, base)) if slot.is_swapped else change(tensors, base)
    if slot.is_swapped:
        return swap(changed(tensors, swap(base)))
    if slot.scales_are_swapped:
        return changed({**tensors, "dora_scale": swap(tensors["dora_scale"])}, base)
    return changed(tensors, base)


def _by_layer(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    plain = {new: old for old, new in _SPELLINGS.items()}
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        layer, _, name = key.removesuffix(".weight").rpartition(".")
        name += ".weight" if key.endswith(".weight") else ""
        found.setdefault(layer, {})[plain.get(name, name)] = tensor
    return found


def _difference(layer: Any, base: Tensor, found: Tensor, *, is_whole: bool) -> float:
    """Returns how far a change is from peft's, relative to its largest number; or a whole weight from peft's."""
    if layer is None:
        return float((found - base).abs().max() / base.abs().max() if is_whole else found.abs().max())
    copied = copy.deepcopy(layer).float()
    if is_whole:
        copied.merge()
        wanted = copied.get_base_layer().weight
    else:
        wanted = copied.get_delta_weight(ADAPTER_NAME)
    off, largest = (found - wanted).abs().max(), wanted.abs().max()
    return float(off / largest if largest > 0 else off)


def _dtype_of(path: Path) -> torch.dtype:
    """Returns the type of the matrices; alphas and row scales are in fp32 in any case."""
    dtypes: set[torch.dtype] = {tensor.dtype for tensor in load_file(path).values()}
    return min(dtypes, key=lambda dtype: dtype.itemsize)


def _base(module: nn.Module) -> Tensor:
    layer: Any = module
    weight: Tensor = (layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer).weight
    return weight


def _has_weight(module: nn.Module) -> bool:
    return hasattr(module, "get_base_layer") or isinstance(module, nn.Linear | nn.Conv2d)


def _metadata(method: AppliedAdapter, form: AdapterForm, file_format: str) -> dict[str, str]:
    adapter, config = method.adapter, method.peft_config()
    found = adapter_metadata(method.family.name, file_format, method.family.architecture.denoiser)
    if form.module is None or not isinstance(adapter, LowRank):
        return found
    alpha = adapter.effective_alpha * (adapter.rank**0.5 if adapter.kind == "rslora" else 1.0)
    found |= {"ss_network_dim": str(adapter.rank), "ss_network_alpha": f"{alpha:g}"}
    found["ss_network_module"] = form.module if adapter.kind in ("lora", "rslora") else f"networks.{adapter.kind}"
    if isinstance(config, LoKrConfig):
        found["ss_network_args"] = json.dumps({"factor": config.decompose_factor})
    return found
