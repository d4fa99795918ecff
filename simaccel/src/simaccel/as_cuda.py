"""Puts the simulated device behind torch.cuda of a torch without CUDA."""

import os
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from simaccel import hiding, nccl, streams
from simaccel.properties import DeviceProperties, Machine


def install(torch: ModuleType, sim: Any, machine: Machine) -> None:
    """Replaces what torch.cuda calls in C++ and what torch.version reports."""
    _configure(sim, machine)
    kind = machine.personality
    torch.version.cuda, torch.version.hip = kind.cuda_version, kind.hip_version
    torch._C._has_cuda = True
    _install_devices(torch, sim, machine)
    _install_memory(torch, sim, machine)
    _install_runtime(torch, sim)
    streams.install(torch, sim)
    _install_resizing(torch, sim)
    torch.cuda.sim = sim
    hiding.install(torch)
    if os.environ.get("SIMACCEL_COMM", "1") != "0" and torch.distributed.is_available():
        nccl.install(torch, sim)


def _configure(sim: Any, machine: Machine) -> None:
    kind = machine.personality
    shares_workspace = not kind.is_rocm and os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1") != "0"
    sim.configure(
        {
            "memory_bytes": machine.memory_bytes,
            "capability": 10 * kind.capability[0] + kind.capability[1],
            "is_rocm": kind.is_rocm,
            "has_workspaces": os.environ.get("SIMACCEL_WORKSPACES", "0") not in ("", "0"),
            "has_matmul_workspace": not shares_workspace,
            "blas_workspace_bytes": kind.blas_workspace_bytes,
            "matmul_workspace_bytes": kind.matmul_workspace_bytes,
        }
    )
    sim.set_device_count(len(machine.cards))


def _install_devices(torch: ModuleType, sim: Any, machine: Machine) -> None:
    c, cuda = torch._C, torch.cuda
    forked_with_cuda = False

    def look() -> int:
        if not cuda._initialized:
            sim.set_device_count(machine.look())
        return int(sim.device_count())

    def init() -> None:
        if not look():
            raise RuntimeError("No CUDA GPUs are available")
        cuda.default_generators = tuple(sim.default_generator(index) for index in range(sim.device_count()))

    def note_fork() -> None:
        nonlocal forked_with_cuda
        forked_with_cuda = bool(cuda._initialized)
        if not forked_with_cuda:
            # Its tensors are its own. Where there are some already, the copy cannot use them, as on a GPU.
            sim.renew_memory()

    def properties(index: int) -> DeviceProperties:
        return machine.properties(index)

    os.register_at_fork(after_in_child=note_fork)
    cuda._is_in_bad_fork = lambda: forked_with_cuda
    c._cuda_getDeviceCount, c._cuda_init = look, init
    c._cuda_getDevice, c._cuda_setDevice = sim.get_device, sim.set_device
    c._cuda_synchronize = sim.synchronize
    c._cuda_getArchFlags = lambda: machine.personality.architectures
    c._cuda_canDeviceAccessPeer = lambda device, peer: device != peer
    c._cuda_hasPrimaryContext = lambda _device: True
    cuda._exchange_device = cuda._maybe_exchange_device = sim.exchange_device
    # torch imports it from C++ when it is initialised.
    c._get_device_properties = cuda._get_device_properties = properties


def _install_memory(torch: ModuleType, sim: Any, machine: Machine) -> None:
    c = torch._C
    c._cuda_emptyCache = sim.empty_cache
    c._cuda_memoryStats = lambda device: _nested(sim.memory_stats(device))
    c._cuda_resetPeakMemoryStats = sim.reset_peak
    c._cuda_resetAccumulatedMemoryStats = sim.reset_accumulated
    c._cuda_getAllocatorBackend = lambda: "native"
    c._cuda_setMemoryFraction = lambda fraction, device: sim.set_limit(int(fraction * machine.memory_bytes), device)
    c._cuda_hostMemoryStats = sim.page_locked_stats
    c._cuda_resetPeakHostMemoryStats = lambda: sim.reset_page_locked_stats(True)
    c._cuda_resetAccumulatedHostMemoryStats = lambda: sim.reset_page_locked_stats(False)
    c._host_emptyCache = sim.free_page_locked_cache
    c._cuda_clearCublasWorkspaces = sim.free_workspaces
    c._cuda_getCublasWorkspaceSize = lambda: machine.personality.blas_workspace_bytes
    c._cuda_getCublasLtWorkspaceSize = lambda: machine.personality.matmul_workspace_bytes


def _install_runtime(torch: ModuleType, sim: Any) -> None:
    c, cuda = torch._C, torch.cuda
    c._cuda_get_sync_debug_mode = sim.sync_debug_mode
    c._cuda_set_sync_debug_mode = sim.set_sync_debug_mode
    c._cuda_ipc_collect = lambda: None
    c._cuda_getCompiledVersion = lambda: 13000
    c._cuda_isCurrentStreamCapturing = lambda: False
    c._cuda_getCurrentRawStream = lambda device: torch.accelerator.current_stream(device).stream_id
    c._cudart = cuda._cudart = SimpleNamespace(
        cudaMemGetInfo=sim.memory_info,
        cudaGetErrorString=str,
        cudaError=SimpleNamespace(success=0),
        cudaHostRegister=lambda *_: 0,
        cudaHostUnregister=lambda *_: 0,
        cudaProfilerStart=lambda: 0,
        cudaProfilerStop=lambda: 0,
    )
    cuda.check_error = lambda _result: None

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        cuda._lazy_init()
        free_bytes, total_bytes = sim.memory_info(cuda._utils._get_device_index(device, optional=True))
        return free_bytes, total_bytes

    cuda.mem_get_info = cuda.memory.mem_get_info = mem_get_info


def _install_resizing(torch: ModuleType, sim: Any) -> None:
    resize_on_host = torch.UntypedStorage.resize_

    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize_on_host(self, size)
        sim.resize_storage(self._cdata, size)
        return self

    torch.UntypedStorage.resize_ = resize_


def _nested(flat: Mapping[str, int]) -> dict[str, Any]:
    """Turns {"a.b": 1} into {"a": {"b": 1}}, as torch's C++ returns statistics."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        place = nested
        for name in path:
            place = place.setdefault(name, {})
        place[last] = value
    return nested
