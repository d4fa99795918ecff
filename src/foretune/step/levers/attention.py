"""Selects the attention kernel."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from foretune.choices.training import AttentionBackend
from foretune.core.errors import Refused

_BACKENDS: dict[AttentionBackend, SDPBackend] = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# torch's messages if the only allowed kernel does not support the input.
_NO_KERNEL = ("No available kernel", "No viable backend")


def apply_attention(backend: AttentionBackend, denoiser: nn.Module, blocks: tuple[nn.Module, ...]) -> None:
    """Forces attention to use this kernel in training, validation and sampling, or to fail.

    Blocks are wrapped too, not only the denoiser, because a recomputed block runs outside the denoiser's forward.
    """
    if backend != "auto":
        for module in (denoiser, *blocks):
            module.forward = _with_kernel(backend, module.forward)


def _with_kernel(backend: AttentionBackend, forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with sdpa_kernel(_BACKENDS[backend]):
            try:
                return forward(*args, **kwargs)
            except RuntimeError as error:
                if any(words in str(error) for words in _NO_KERNEL):
                    raise Refused(
                        f"levers.attention: the {backend} kernel cannot compute the attention of this model, "
                        "given its device, dtype, head size or mask. Nearest: levers.attention=auto"
                    ) from error
                raise

    return run
