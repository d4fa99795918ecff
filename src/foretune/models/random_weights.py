"""A denoiser of full size with random weights, for measurements: nothing is downloaded, and memory is taken once."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from foretune.choices.experiment import Experiment
from foretune.choices.model import ModelReference
from foretune.core.errors import Refused, UserError
from foretune.models.family import Family
from foretune.models.locating import family_from_catalogue, open_family
from foretune.models.trainable import TrainableFamily

_LARGEST_STD = 0.02
_NUM_DRAWN = 1_000_003
"""Numbers that are drawn; weights repeat them, which is as fast as copying. A prime, so that no two rows of a matrix
are equal."""


def family_without_weights(model: ModelReference) -> TrainableFamily:
    """Returns a model's family from its folder or from the catalogue. Downloads nothing."""
    if model.folder is not None:
        return open_family(model.folder)
    if model.kind != "catalogue":
        raise UserError(
            f"{model.asked} is not in the catalogue, so its sizes are not known without a download. "
            "Measure it with its own weights, or choose a model of the catalogue. Run: foretune list models"
        )
    family = family_from_catalogue(model.asked)
    if not isinstance(family, TrainableFamily):
        raise Refused(f"{model.asked} is a {family.name} model, which cannot be trained yet. Run: foretune list models")
    family.refuse_variant(model.asked)
    return family


def random_denoiser(family: Family, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Builds the denoiser as loading would leave it, on a device, with weights that are drawn there.

    Weights are described on meta, then allocated in their own dtype and filled in place, one tensor after another: at
    no time does one exist twice or in a wider dtype. Buffers and position tables are computed as the class does it.
    """
    denoiser = family.denoiser_without_weights(dtype)
    drawn = torch.randn(_NUM_DRAWN, generator=torch.Generator().manual_seed(0)).to(device)
    drawn_as = {drawn.dtype: drawn}
    made: dict[int, nn.Parameter] = {}
    for part in denoiser.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in made:
                weights = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                if parameter.dtype not in drawn_as:
                    drawn_as[parameter.dtype] = drawn.to(parameter.dtype)
                _fill(weights, name, drawn_as[parameter.dtype])
                made[id(parameter)] = nn.Parameter(weights, requires_grad=parameter.requires_grad)
            part._parameters[name] = made[id(parameter)]
    return denoiser.to(device)


@torch.no_grad()
def _fill(weights: Tensor, name: str, drawn: Tensor) -> None:
    """Biases are zero and factors of norms one, so that activations stay finite through all blocks."""
    if weights.dim() <= 1:
        weights.fill_(0.0 if name.endswith("bias") else 1.0)
        return
    flat = weights.view(-1)
    for part in _parts(flat):
        part.copy_(drawn[: part.numel()])
    num_inputs = weights[0].numel()
    flat.mul_(min(_LARGEST_STD, num_inputs**-0.5))


def _parts(flat: Tensor) -> Iterator[Tensor]:
    for start in range(0, flat.numel(), _NUM_DRAWN):
        yield flat[start : start + _NUM_DRAWN]


def first_device(experiment: Experiment, device: torch.device) -> torch.device:
    """Where random weights are made: on the host what loading also leaves there, because the device may be too small
    for all of it.
    """
    stays = experiment.quantize.denoiser != "none" or experiment.levers.block_swap
    return torch.device("cpu") if stays or experiment.parallel.sharding != "none" else device
