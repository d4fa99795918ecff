"""Loads a base layer by layer to where it will run, quantised on the way.

Host memory holds the pages of the weight files, which the system can drop, and one layer; and what stays on the host.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from foretune.choices.experiment import Experiment
from foretune.choices.quantize import Quantize
from foretune.choices.training import Levers
from foretune.core.observer import Observer
from foretune.core.values.base import content_hash
from foretune.models.random_weights import first_device, random_denoiser
from foretune.models.stored_weights import StoredWeights
from foretune.models.trainable import TrainableFamily
from foretune.step.levers import modules_on_host
from foretune.step.methods import METHODS
from foretune.step.precision import PrecisionPolicy
from foretune.step.quantizing import Quantized, Quantizer, denoiser_quantizer
from foretune.step.weights import checksums

OnModule = Callable[[dict[str, nn.Parameter]], None]
"""Called with the parameters of one module by name, as they were read."""


@dataclass(frozen=True)
class Base:
    """The denoiser that a run starts from."""

    denoiser: nn.Module
    quantized: Quantized | None
    """None if it is not quantised, or is to be quantised later."""
    checksum: str
    """Of its weights before they were quantised."""


def base_of(
    experiment: Experiment, family: TrainableFamily, folder: Path | None, device: torch.device, observer: Observer
) -> Base:
    """Returns the base of an experiment; without a folder its weights are random."""
    dtype = METHODS[experiment.method.kind].load_dtype(PrecisionPolicy.of(experiment.train))
    if folder is None:
        observer.message(f"Building {family.name} with random weights on {device}.")
        denoiser = random_denoiser(family, dtype, first_device(experiment, device))
        return Base(denoiser, None, content_hash(checksums(dict(denoiser.named_parameters()))))
    observer.message(f"Loading {family.name} from {folder} on {device}.")
    sums: dict[str, int] = {}
    request = LoadRequest(
        dtype=dtype,
        device=device,
        quantize=experiment.quantize,
        levers=experiment.levers,
        is_sharded=experiment.parallel.sharding != "none",
    )
    denoiser, quantized = load_base(family, folder, request, on_module=lambda weights: sums.update(checksums(weights)))
    return Base(denoiser, quantized, content_hash(sums))


@dataclass(frozen=True, kw_only=True)
class LoadRequest:
    """The dtype of a denoiser that is loaded, and its device."""

    dtype: torch.dtype
    device: torch.device
    quantize: Quantize = field(default_factory=Quantize)
    levers: Levers | None = None
    """Blocks that these swap stay on the host."""
    is_sharded: bool = False
    """Whether it will be sharded: then all of it stays on the host."""


def load_base(
    family: TrainableFamily,
    folder: Path,
    request: LoadRequest,
    *,
    on_module: OnModule | None = None,
    stored: StoredWeights | None = None,
) -> tuple[nn.Module, Quantized | None]:
    """Loads the denoiser to a device.

    `on_module` sees the weights before they are quantised. `stored` has other weights than the folder.
    """
    host = torch.device("cpu")
    place = host if request.is_sharded else request.device
    quantizer: Quantizer | None = None
    on_host: frozenset[str] = frozenset()

    def finish(denoiser: nn.Module, name: str) -> None:
        nonlocal quantizer, on_host
        if not name:  # the first one: the model itself
            quantizer = denoiser_quantizer(request.quantize, family, denoiser, request.device)
            on_host = frozenset() if request.levers is None else modules_on_host(request.levers, family, denoiser)
        if on_module is not None:
            module = denoiser.get_submodule(name)
            on_module(dict(module.named_parameters(prefix=name, recurse=False)))
        home = host if name in on_host else place
        if quantizer is not None:
            quantizer.take(denoiser, name, home)
        denoiser.get_submodule(name)._apply(lambda tensor: tensor.to(home), recurse=False)

    denoiser = family.load_denoiser(folder, request.dtype, finish, stored)
    return denoiser, None if quantizer is None else quantizer.done()
