"""Page-locked (pinned) host memory, which devices copy from and to in the background."""

import torch
from torch import Tensor

_refusal: str | None = None
"""The driver's error message, once it has refused to page-lock memory."""


def copies_in_background(device: torch.device) -> bool:
    """Returns whether copies between the device and page-locked memory run in the background: on CUDA and ROCm.

    Not on MPS: its asynchronous copies read the host's pages without keeping them alive in torch 2.13
    (https://github.com/pytorch/pytorch/issues/189690), so a tensor that is freed early arrives as garbage.
    """
    return device.type == "cuda"


def refusal() -> str | None:
    """Returns the driver's reason if it has refused to page-lock memory in this process, else None."""
    return _refusal


def empty_like(tensor: Tensor, reader: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Returns an empty tensor in host memory, page-locked if `reader` copies from such memory in the background.

    It is pageable if the driver refuses. After the first refusal nothing more is requested: requests are slow, and on
    Windows one failure makes all later ones fail.
    """
    global _refusal  # noqa: PLW0603 - the driver's limit holds for the whole process
    if _refusal is None and copies_in_background(reader):
        try:
            return torch.empty_like(tensor, device="cpu", dtype=dtype, pin_memory=True, requires_grad=False)
        except RuntimeError as error:
            _refusal = str(error).strip().partition("\n")[0]
    return torch.empty_like(tensor, device="cpu", dtype=dtype, requires_grad=False)


def empty(num_bytes: int, reader: torch.device) -> Tensor:
    """Returns bytes in host memory, page-locked as by `empty_like`."""
    return empty_like(torch.empty(num_bytes, dtype=torch.uint8, device="meta"), reader)


def locked(tensor: Tensor, reader: torch.device) -> Tensor:
    """Returns a copy of a host tensor in page-locked memory; the tensor itself if that has no effect."""
    copy = empty_like(tensor, reader)
    return copy.copy_(tensor) if copy.is_pinned() else tensor


def is_locked(tensor: Tensor) -> bool:
    """Returns whether a tensor is in page-locked memory."""
    return tensor.device.type == "cpu" and tensor.is_pinned()
