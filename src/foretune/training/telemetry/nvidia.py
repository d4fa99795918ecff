"""NVIDIA devices through the driver's management library (package nvidia-ml-py)."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from foretune.training.telemetry.sensor import Quantities, answered

# Bits of "clocks event reasons" that mean: slower than it could be. Being idle, or set so by the user, is none.
_THROTTLE_BITS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}


class NvidiaSensor:
    """Every device, or those of the given UUIDs."""

    def __init__(self, library: Any, uuids: Sequence[str] | None = None) -> None:
        self._nvml = library
        library.nvmlInit()
        if uuids is None:
            handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
        else:
            # SLURM may hide the devices of the other processes of a run: what is there is still read.
            handles = list(answered(**{uuid: partial(_by_uuid, library, uuid) for uuid in uuids}).values())
        self._handles = {f"nvidia:{library.nvmlDeviceGetIndex(handle)}": handle for handle in handles}

    @classmethod
    def open(cls, uuids: Sequence[str] | None = None) -> "NvidiaSensor | None":
        """None where there is no library, no driver or no device."""
        try:
            import pynvml

            sensor = cls(pynvml, uuids)
        except Exception:  # noqa: BLE001 - no library, no driver, no permission: there is no sensor
            return None
        return sensor if sensor._handles else None

    def read(self) -> Mapping[str, Quantities]:
        return {source: self._of(handle) for source, handle in self._handles.items()}

    def _of(self, handle: Any) -> Quantities:
        nvml = self._nvml
        return answered(
            power_w=lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            energy_j=lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
            clock_hz=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
            memory_clock_hz=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6,
            temperature_c=lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            throttling=lambda: throttle_reasons(_event_reasons(nvml, handle)),
            utilisation=lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            num_processes=lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or None,
            memory_used_bytes=lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
        )

    def close(self) -> None:
        self._nvml.nvmlShutdown()


def throttle_reasons(bits: int) -> list[str]:
    """The words for a bit mask of clocks event reasons."""
    return [reason for bit, reason in _THROTTLE_BITS.items() if bits & bit]


def _event_reasons(nvml: Any, handle: Any) -> int:
    # Named "throttle reasons" before driver 535.
    ask = (
        getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    )
    return int(ask(handle))


def _by_uuid(library: Any, uuid: str) -> Any:
    return library.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
