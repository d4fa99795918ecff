"""Out of memory is recognised in the words of every library that allocates, and nowhere else."""

import pytest

from foretune.core.errors import UserError
from foretune.core.memory_errors import lacking_memory, lacking_memory_in


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.52 GiB.",
        "HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 191.98 GiB",
        "XPU out of memory. Tried to allocate 20.00 MiB.",
        ("MPS backend out of memory (MPS allocated: 17.93 GiB). Tried to allocate 256.00 MiB on private pool."),
        "Invalid buffer size: 24.00 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
        "HIP error: out of memory",
        "CUDA driver error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "cuFFT error: CUFFT_ALLOC_FAILED",
        "hipErrorOutOfMemory: out of memory",
        "Triton Error [CUDA]: out of memory",
        (
            "NCCL error in: ProcessGroupNCCL.cpp:3699, unhandled cuda error\nncclUnhandledCudaError: "
            "Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
        ),
        "NCCL error in: ProcessGroupNCCL.cpp:1269, unhandled cuda error\nCuda failure 'out of memory'",
        "RCCL error: HIP failure: 'out of memory'",
        "Error out of memory at line 380 in file /src/csrc/pythonInterface.cpp",
    ],
)
def test_device_memory(text: str) -> None:
    assert lacking_memory(RuntimeError(text)) == "device"
    assert lacking_memory_in(f"RuntimeError: {text}") == "device"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("data. DefaultCPUAllocator: not enough memory: you tried to allocate 68719476736 bytes."),
        RuntimeError("std::bad_alloc"),
        RuntimeError("can't start new thread"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
    ],
)
def test_host_memory(error: Exception) -> None:
    assert lacking_memory(error) == "host"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: too many resources requested for launch"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
        RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376."),
        RuntimeError("ncclUnhandledCudaError: Call to CUDA failed.\nLast error:\nCuda failure 1 'invalid argument'"),
        RuntimeError("Invalid buffer size"),
        RuntimeError("The expanded size of the tensor (77) must match the existing size (78)"),
        RuntimeError("index 7 is out of bounds for dimension 0 with size 7"),
        OSError(28, "No space left on device"),
        ValueError("the caption 'CUDA out of memory' has no image"),
        KeyError("CUDA out of memory"),
        UserError("A plan says that this runs: CUDA out of memory"),
    ],
)
def test_errors_that_only_resemble_it(error: Exception) -> None:
    assert lacking_memory(error) is None


def test_classes_of_torch() -> None:
    import torch

    assert lacking_memory(torch.OutOfMemoryError("x")) == "device"
    assert lacking_memory(torch.AcceleratorError("CUDA error: out of memory")) == "device"
    assert lacking_memory(torch.distributed.DistBackendError("Cuda failure 2 'out of memory'")) == "device"
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    assert lacking_memory(raised.value) == "host"
