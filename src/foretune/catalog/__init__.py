"""Facts with a source in every row: devices, models, prices, published measurements. No logic."""

from foretune.catalog.counts import FlopCount, LoraCount, flop_counts, lora_counts
from foretune.catalog.devices import Device, device, device_by_driver_name, device_names, devices
from foretune.catalog.measurements import Measurement, measurements
from foretune.catalog.models import ModelComponent, component, components, denoiser, denoiser_names, denoisers
from foretune.catalog.rows import CatalogError

__all__ = [
    "CatalogError",
    "Device",
    "FlopCount",
    "LoraCount",
    "Measurement",
    "ModelComponent",
    "component",
    "components",
    "denoiser",
    "denoiser_names",
    "denoisers",
    "device",
    "device_by_driver_name",
    "device_names",
    "devices",
    "flop_counts",
    "lora_counts",
    "measurements",
]
