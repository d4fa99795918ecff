"""Quantises the layers of a model and reports the result."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from foretune.choices.quantize import Quantize
from foretune.core.errors import MissingExtra, Refused
from foretune.core.registry import Registry
from foretune.models.family import Family
from foretune.step.quantizing.float8_products import is_emulated


class Backend(Protocol):
    """A class of layers that replaces dense ones."""

    def takes(self, num_inputs: int, num_outputs: int) -> bool: ...

    def of(self, dense: nn.Linear) -> nn.Module: ...


_PACKAGE = "foretune.step.quantizing"
BACKENDS: Registry[Backend] = Registry(
    "quantisation",
    {
        "int8": f"{_PACKAGE}.torchao_weights:Int8Linear",
        "float8": f"{_PACKAGE}.torchao_weights:Float8Linear",
        "float8-dynamic": f"{_PACKAGE}.torchao_weights:DynamicFloat8Linear",
        "float8-training": f"{_PACKAGE}.float8_training:Float8TrainingLinear",
        "nf4": f"{_PACKAGE}.bitsandbytes_weights:Nf4Linear",
        "int8-bnb": f"{_PACKAGE}.bitsandbytes_weights:BnbInt8Linear",
    },
)
_replaced: Mapping[str, Backend] = {}
"""Backends that are used instead of those above."""
_FLOAT8_PRODUCTS = ("float8-dynamic", "float8-training")
_FIRST_WITH_FLOAT8 = (8, 9)
"""Compute capability of the first NVIDIA GPUs with FP8 matrix products: Ada and Hopper."""


@dataclass(frozen=True)
class Quantized:
    """The result of quantising a model's linear layers."""

    kind: str
    num_layers: int
    num_weights: int
    """Number of weights in the quantised layers, without biases."""
    num_dense_bytes: int
    """Their size before quantisation."""
    num_bytes: int
    """Their size now, including scales."""
    kept: tuple[str, ...]
    """Layers that stay dense by choice."""
    unfit: tuple[str, ...]
    """Layers that stay dense because the backend does not support their size."""
    is_emulated: bool
    """Whether FP8 products are computed in a wider dtype, which represents the factors exactly."""

    def facts(self) -> dict[str, Any]:
        """Returns the fields for the run's record."""
        return {**vars(self), "kept": list(self.kept), "unfit": list(self.unfit)}


@contextmanager
def quantizing_with(backends: Mapping[str, Backend]) -> Iterator[None]:
    """Quantises some kinds with other layers meanwhile: for recordings of how other trainers do it."""
    global _replaced  # noqa: PLW0603 - one for all models, wherever they are quantised
    before, _replaced = _replaced, backends
    try:
        yield
    finally:
        _replaced = before


def check_quantization(choice: Quantize, device: torch.device) -> None:
    """Raises if a backend is not installed or the device does not support it, before anything is loaded."""
    for kind in (choice.denoiser, choice.text_encoders):
        if kind != "none":
            _backend(kind)
            _check_device(kind, device)


def quantize_denoiser(
    choice: Quantize, family: Family, denoiser: nn.Module, device: torch.device | None = None
) -> Quantized | None:
    """Quantises linear layers in place, on any device, including meta. Returns None if no quantisation is requested.

    Weights are quantised one by one on `device`, and the result is moved back to where the weight was. Two CPU cores
    take 14 s (float8, int8-bnb) to 50 s (nf4) for a billion weights.
    """
    quantizer = denoiser_quantizer(choice, family, denoiser, device)
    return None if quantizer is None else quantizer.all_of(denoiser)


def denoiser_quantizer(
    choice: Quantize, family: Family, denoiser: nn.Module, device: torch.device | None = None
) -> "Quantizer | None":
    """Returns what quantises the layers of a denoiser one by one, for instance while it is loaded. None if no
    quantisation is requested.

    The denoiser may be without weights: only its layers and their names are looked at.
    """
    if choice.denoiser == "none":
        return None
    if choice.keep is not None:
        _check_names(choice.keep, denoiser)
        is_kept = _named(choice.keep)
    else:
        is_kept = kept_by_default(family, denoiser)

    def check(done: Quantized) -> None:
        if not done.num_layers:
            why = f"all {len(done.kept)} are kept" if done.kept else "it has none that would fit"
            raise Refused(
                f"quantize.denoiser: {choice.denoiser} is for linear layers, and of this {family.name} model no linear "
                f"layer would be quantised: {why}. Nearest: quantize.denoiser=none"
            )

    return Quantizer(choice.denoiser, is_kept, device, check)


def quantize_encoder(kind: str, encoder: nn.Module, device: torch.device | None = None) -> Quantized:
    """Quantises all linear layers of a text encoder, one by one on `device`, where they stay. Its embeddings stay as
    they are.
    """

    def check(done: Quantized) -> None:
        if done.unfit:
            raise Refused(
                f"quantize.text_encoders: {kind} cannot take the sizes of {', '.join(done.unfit[:5])}. "
                "Nearest: quantize.text_encoders=int8"
            )

    return Quantizer(kind, _named(()), device, check).all_of(encoder, device)


class Quantizer:
    """Replaces linear layers of one model by quantised ones."""

    def __init__(
        self,
        kind: str,
        is_kept: Callable[[str], bool],
        device: torch.device | None,
        check: Callable[[Quantized], None],
    ) -> None:
        """`device` quantises; None leaves it to the device of each weight. `check` may refuse the result."""
        self._kind, self._is_kept, self._device, self._check = kind, is_kept, device, check
        self._backend = _backend(kind)
        self._kept: list[str] = []
        self._unfit: list[str] = []
        self._num_layers = self._num_weights = self._num_dense_bytes = self._num_bytes = 0

    def all_of(self, model: nn.Module, place: torch.device | None = None) -> Quantized:
        """Quantises every layer that is to be."""
        # By name: a list of the layers would hold their dense weights in memory.
        for name in [name for name, module in model.named_modules() if type(module) is nn.Linear]:
            self.take(model, name, place)
        return self.done()

    def take(self, model: nn.Module, name: str, place: torch.device | None) -> None:
        """Quantises one layer if it is to be. `place` is where the result goes; None is where the weight was."""
        dense = model.get_submodule(name)
        if type(dense) is not nn.Linear:
            return
        if self._is_kept(name):
            self._kept.append(name)
        elif not self._backend.takes(dense.in_features, dense.out_features):
            self._unfit.append(name)
        else:
            num_dense_bytes, place = dense.weight.nbytes, place or dense.weight.device
            if self._device is not None and not dense.weight.is_meta:
                dense.to(self._device)
            made = self._backend.of(dense)
            if place != dense.weight.device:
                made.to(place)
            self._num_layers += 1
            self._num_weights += dense.weight.numel()
            self._num_dense_bytes += num_dense_bytes
            self._num_bytes += sum(p.nbytes for key, p in made.named_parameters() if key != "bias")
            model.set_submodule(name, made)

    def done(self) -> Quantized:
        """Returns the result, once all layers were given."""
        result = Quantized(
            kind=self._kind,
            num_layers=self._num_layers,
            num_weights=self._num_weights,
            num_dense_bytes=self._num_dense_bytes,
            num_bytes=self._num_bytes,
            kept=tuple(self._kept),
            unfit=tuple(self._unfit),
            is_emulated=self._kind in _FLOAT8_PRODUCTS and self._device is not None and is_emulated(self._device.type),
        )
        self._check(result)
        return result


def _backend(kind: str) -> Backend:
    try:
        return _replaced[kind] if kind in _replaced else BACKENDS[kind]
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("torchao", "bitsandbytes"):
            raise
        raise MissingExtra(f"A model in {kind}", "quantize") from error


def _named(parts: Iterable[str]) -> Callable[[str], bool]:
    listed = tuple(parts)
    return lambda name: any(part in name for part in listed)


def _check_names(parts: Iterable[str], model: nn.Module) -> None:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    for part in parts:
        if not any(part in name for name in names):
            ends = sorted({name.rpartition(".")[2] if not name[-1].isdigit() else name for name in names})
            raise Refused(
                f"quantize.keep: no linear layer of this model has {part!r} in its name. "
                f"Some that it has: {', '.join(ends[:12])}"
            )


def kept_by_default(family: Family, denoiser: nn.Module) -> Callable[[str], bool]:
    """Returns a predicate for names of layers that stay dense: all outside the blocks, and those the family names."""
    inside = {id(module) for block in family.blocks(denoiser) for module in block.modules()}
    names = {name for name, module in denoiser.named_modules() if id(module) not in inside}
    is_named = _named(family.kept_in_high_precision)
    return lambda name: name in names or is_named(name)


def _check_device(kind: str, device: torch.device) -> None:
    if kind not in _FLOAT8_PRODUCTS or device.type != "cuda":
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < _FIRST_WITH_FLOAT8:
        name = torch.cuda.get_device_name(device)
        raise Refused(
            f"quantize.denoiser: {kind} multiplies 8-bit floating-point numbers, which {name} (compute capability "
            f"{capability[0]}.{capability[1]}) cannot; 8.9 and newer can. Nearest: quantize.denoiser=float8, which "
            "widens 8-bit weights before each product"
        )
