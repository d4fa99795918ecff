"""Stand-ins for management libraries that need a device. Their answers have the form and units that the libraries'
own documentation gives; no recording of a real card was at hand.
"""

from types import SimpleNamespace
from typing import Any


class NotSupported(Exception):
    """What nvidia-ml-py raises for a question that a device cannot answer."""


class FakeNvml:
    """Two cards. The second is a laptop's: it counts no energy and tells no power."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self) -> None:
        self.energy_mj = 5_000_000
        self.reasons = 0x01
        self.num_open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.num_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.num_open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        return {"GPU-aa": 0, "GPU-bb": 1}[uuid]

    def nvmlDeviceGetIndex(self, handle: int) -> int:  # noqa: N802
        return handle

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        if handle == 1:
            raise NotSupported
        return 251_300

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        if handle == 1:
            raise NotSupported
        return self.energy_mj

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return {1: 1410, 2: 1593}[kind]

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:  # noqa: N802
        return 61

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=4711), SimpleNamespace(pid=4712)][: 2 - handle]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=30 * 2**30, free=50 * 2**30, total=80 * 2**30)


AMD_METRICS = {
    "current_socket_power": "N/A",
    "average_socket_power": 412,
    "current_gfxclk": 2100,
    "current_uclk": 0xFFFF,
    "temperature_hotspot": 74,
    "average_gfx_activity": 88,
    "throttle_status": 0,
}


def fake_amdsmi(num_cards: int = 1) -> Any:
    """Cards that tell no memory clock."""
    return SimpleNamespace(
        amdsmi_get_processor_handles=lambda: list(range(num_cards)),
        amdsmi_get_gpu_device_bdf=lambda handle: f"0000:{0x11 + 0x10 * handle:02X}:00.0",
        amdsmi_get_gpu_metrics_info=lambda handle: AMD_METRICS,
        amdsmi_get_energy_count=lambda handle: {"energy_accumulator": 1_000_000, "counter_resolution": 15.3},
        amdsmi_get_gpu_vram_usage=lambda handle: {"vram_total": 65536, "vram_used": 1024},
    )
