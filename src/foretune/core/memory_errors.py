"""Errors that mean "out of memory", in the words of each library that allocates."""

import errno
import re
from typing import Literal

LackingMemory = Literal["device", "host"]

_OF_DEVICE = re.compile(
    # torch's allocators, torch.AcceleratorError (which page-locked host memory and loading kernels raise, too),
    # expandable segments ("CUDA driver error") and Triton.
    r"\b(?:CUDA|HIP|XPU|MPS backend)(?: driver)?(?: error:)? out of memory"
    r"|Triton Error \[\w+\]: out of memory"
    # A single buffer above Metal's limit.
    r"|Invalid buffer size: [\d.]+ [KMGT]i?B"
    r"|\b(?:CU|HIP)(?:BLAS|SOLVER|SPARSE|DNN)_STATUS_ALLOC_FAILED|\b(?:CU|HIP)FFT_ALLOC_FAILED"
    r"|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|rocblas_status_memory_error|miopenStatusAllocFailed"
    r"|\bhipErrorOutOfMemory\b|\bcudaErrorMemoryAllocation\b|\bCUDA_ERROR_OUT_OF_MEMORY\b"
    # NCCL, and RCCL.
    r"|\b(?:Cuda|HIP) failure:? (?:\d+ )?'out of memory'"
    # bitsandbytes.
    r"|\bError out of memory at line \d+",
    re.IGNORECASE,
)
_OF_HOST = re.compile(
    r"DefaultCPUAllocator|std::bad_alloc|Cannot allocate memory|\bMemoryError\b"
    r"|CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"
    # Also what libraries of threads print if the limit of the process leaves no memory for another stack.
    r"|can't start new thread|Thread creation failed: Resource temporarily unavailable"
)


def lacking_memory(error: BaseException) -> LackingMemory | None:
    """Returns the memory that ran out; None if the error means something else.

    torch raises `torch.OutOfMemoryError` only for its caching allocators. Everything else is a RuntimeError that has to
    be told apart by its text, so the text of other classes is not read: it may quote anything.
    """
    # By name: this layer does not import torch.
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if any(name.startswith("torch.") and name.endswith("OutOfMemoryError") for name in names):
        return "device"
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return "host"
    return lacking_memory_in(str(error)) if isinstance(error, RuntimeError) else None


def lacking_memory_in(text: str) -> LackingMemory | None:
    """Returns the memory that ran out by the text of an error or the output of a process."""
    if _OF_HOST.search(text):
        return "host"
    return "device" if _OF_DEVICE.search(text) else None
